"""A web server for files in memory that can be told to misbehave: ranges and ETags as nginx has them, faults by the request."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import xxhash
from odd_server import Asked, Goodbye, OddServer, head, ranged


@dataclass(frozen=True)
class Refuse:
    """Answer with this status and no body."""

    status: int = 503
    retry_after_s: float | None = 0


@dataclass(frozen=True)
class Cut:
    """Send so many bytes of the body, then break the connection."""

    after: int


@dataclass(frozen=True)
class Stall:
    """Send so many bytes of the body, then nothing more, with the connection open until the server closes."""

    after: int


@dataclass(frozen=True)
class Slow:
    """Send the body in pieces of so many bytes, with a pause after each."""

    piece: int
    pause_s: float


Fault = Refuse | Cut | Stall | Slow


class FaultyServer(OddServer):
    """Serves files within a `with` block. The next requests for a path meet its faults in turn; then all goes well."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(self._serve_file)
        self.files = dict(files)
        self.faults: defaultdict[str, deque[Fault]] = defaultdict(deque)

    def fail(self, path: str, *faults: Fault) -> None:
        """What the next requests for this path meet."""
        self.faults[path].extend(faults)

    def _serve_file(self, asked: Asked) -> Iterator[bytes]:
        data = self.files.get(asked.target)
        if data is None:
            yield head("404 Not Found", "Content-Length: 0")
            return
        fault = self.faults[asked.target].popleft() if self.faults[asked.target] else None
        if isinstance(fault, Refuse):
            again = [] if fault.retry_after_s is None else [f"Retry-After: {fault.retry_after_s:g}"]
            yield head(f"{fault.status} No", "Content-Length: 0", *again)
            return
        etag = f'"{xxhash.xxh3_64_hexdigest(data)}"'
        if asked.headers.get("if-range", etag) != etag:
            asked.headers.pop("range", None)
        yield ranged(data, asked, f"ETag: {etag}", "Accept-Ranges: bytes")
        body = data[asked.start :]
        if isinstance(fault, Slow):
            for at in range(0, len(body), fault.piece):
                yield body[at : at + fault.piece]
                self.closing.wait(fault.pause_s)
        elif isinstance(fault, Cut | Stall):
            yield body[: fault.after]
            if isinstance(fault, Stall):
                self.closing.wait(60)
            raise Goodbye
        else:
            yield body
