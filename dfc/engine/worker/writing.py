"""How a worker writes an output: straight to a disk of a target beside it, or as one PUT."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dfc.checksum import Buffer
from dfc.engine.worker.nodes import Nodes
from dfc.engine.worker.reading import Throttle
from dfc.errors import LengthMismatch, ObjectCorrupt, Unavailable
from dfc.filesystem import boot_id
from dfc.handover import Part, part_bytes
from dfc.http.blocking import Response, Upload
from dfc.limits import ERROR_BODY_BYTES_MAX, KIB, MIB
from dfc.placement.map import NodeEntry
from dfc.storage.blobs.deposit import Deposited, DepositFile, DepositSite, is_here
from dfc.tar.index.format import index_kind
from dfc.tar.scanner import PlainFiles

# --- Writes outputs directly to the disk of a target on the same machine, without sending them (`dfc.storage.blobs.deposit`).
#
# A byte is then copied twice, as with `cp`, and not four times as through a socket. A request to the target stays open until
# the file is complete: if it breaks off, also because this process dies, the target removes the file.

COPY_BYTES: Final = 1 * MIB
TELL_S: Final = 60.0  # between keep-alives while little is written: the target's timeout is JOB_OUTPUT_PAUSE_S
_NO_ERRNO: Final = errno.EIO  # for an error without a number


class Deposit:
    """An output that is being written to the target's disk; has the interface of `Upload`."""

    def __init__(self, upload: Upload, file: DepositFile) -> None:
        self._upload = upload
        self._file = file
        self._failed = False
        self._told_s = time.monotonic()

    def send(self, data: Buffer, files: PlainFiles | None = None) -> bool:
        """Write the next bytes, all of them. False if the target wants no more. NoSpace."""
        try:
            is_due = self._file.write(data, files)
        except OSError as error:
            return self._fail(error)
        now_s = time.monotonic()
        if not is_due and now_s - self._told_s < TELL_S:
            return True
        self._told_s = now_s
        return self._upload.send(b"\n")

    def send_parts(self, parts: Sequence[Part]) -> bool:
        """Write the next bytes, partly from files. False if the target wants no more. ObjectCorrupt if a file is too short."""
        buffer = memoryview(bytearray(min(COPY_BYTES, max((count for _, _, _, count in parts), default=0))))
        for data, file, offset, count in parts:
            if len(data) and not self.send(data):
                return False
            while count:
                got = os.preadv(file, [buffer[: min(count, len(buffer))]], offset)
                if got == 0:
                    raise ObjectCorrupt(f"an input file ends at byte {offset}, {count} bytes too early")
                if not self.send(buffer[:got]):
                    return False
                offset, count = offset + got, count - got
        return True

    def finish(self) -> Response:
        """Tell the target that the file is complete, and read the status and headers of its answer."""
        try:
            if not self._failed:
                try:
                    said = self._file.finish()
                except OSError as error:
                    self._fail(error)
                else:
                    self._upload.send(msgspec.json.encode(said))
            return self._upload.finish()
        finally:
            self._file.abort()

    def abort(self) -> None:
        """Abort the request, so that the target removes the file. Idempotent."""
        self._file.abort()
        self._upload.abort()

    def _fail(self, error: OSError) -> bool:
        """Report an error of the target's disk to the target, which counts it and answers as if it had occurred there."""
        self._failed = True
        self._upload.send(msgspec.json.encode(Deposited(errno=error.errno or _NO_ERRNO)))
        return False


class Deposits:
    """Starts deposits, and remembers the targets to whose disks this process cannot write."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._far: set[str] = set()
        self._boot = boot_id()

    def begin(self, owner: NodeEntry, site_path: str, path: str, size: int | None, kind: str | None) -> Deposit | None:
        """Start an output of a target; None if it must be sent instead. A single try; raises like a request."""
        if owner.id in self._far:
            return None
        with self._nodes.get(owner.url + site_path) as answer:
            site = msgspec.json.decode(answer.read_all(ERROR_BODY_BYTES_MAX), type=DepositSite)
        try:
            file = DepositFile(site, kind) if is_here(site, self._boot) else None
        except OSError:
            file = None  # visible, but not writable
        if file is None:
            self._far.add(owner.id)
            return None
        try:
            parameters = f"deposit={file.name}" + ("" if size is None else f"&size={size}")
            upload = self._nodes.begin_put(f"{owner.url}{path}{'&' if '?' in path else '?'}{parameters}", None)
            if not upload.wanted:
                with upload.finish() as refusal:
                    raise refusal.error(f"PUT {path}")
        except BaseException:
            file.abort()
            raise
        return Deposit(upload, file)


# --- Streams an output of a task to the target that will own the object, as one PUT to its staging route.
#
# If that target is on this machine, the bytes are written directly to its disk, and only the metadata is sent.

# An output is buffered up to this size: it can then be sent again if its target is away for a moment, its length is known, and
# a task that makes its first bytes slowly does not hold a connection.
KEPT_BYTES: Final = 1 * MIB
SEND_BYTES: Final = 256 * KIB  # smaller pieces cost more in system calls than in copying


class Written(msgspec.Struct, frozen=True):
    """What the owner received; it computed `checksum`, the xxh3-128."""

    size: int
    checksum: str


class StagedOutput:
    """An output of a task. `find_owner` returns the target and `path` is its route; `site_path` is the route that tells where
    this process can write the output itself. After an error only an entry is left, which the end of the job removes."""

    def __init__(
        self,
        nodes: Nodes,
        deposits: Deposits,
        label: str,
        find_owner: Callable[[], NodeEntry],
        path: str,
        site_path: str,
        size: int | None,
        throttle: Throttle,
        check: Callable[[], None],
        forget: Callable[[StagedOutput], None],
    ) -> None:
        self._nodes = nodes
        self._deposits = deposits
        self._label = label
        self._find_owner = find_owner
        self._path = path
        self._site_path = site_path
        self._kind = index_kind(label)
        self._size = size
        self._throttle = throttle
        self._check = check
        self._forget = forget
        self._upload: Upload | Deposit | None = None
        self._kept = bytearray()
        self._count = 0
        self._ended = False

    @property
    def sends(self) -> bool:
        """Whether `send` is cheaper than reading the files and calling `write`; not so if this process writes the output
        itself. Starts the output to find out, unless it is small enough to be buffered."""
        if self._size is not None and self._size <= KEPT_BYTES:
            return False
        return not isinstance(self._begun(), Deposit)

    def write(self, data: Buffer, files: PlainFiles | None = None) -> None:
        view = memoryview(data).cast("B")
        self._grow(len(view))
        if len(view) >= SEND_BYTES:
            self._flush()
            self._send(view, files)
            return
        self._kept += view
        if len(self._kept) >= (KEPT_BYTES if self._upload is None else SEND_BYTES):
            self._flush()

    def send(self, parts: Sequence[Part]) -> None:
        size = part_bytes(parts)
        self._grow(size)
        self._flush()
        upload = self._begun()
        self._throttle.take(size)
        self._watched(upload, lambda: upload.send_parts(parts))

    def commit(self) -> Written:
        if self._ended:
            raise ValueError(f"{self._label} is already committed or aborted")
        if self._size not in (None, self._count):
            self.abort()
            raise LengthMismatch(f"{self._label}: {self._count} bytes were written instead of the announced {self._size}")
        try:
            written = msgspec.json.decode(self._finish(), type=Written)
        except msgspec.MsgspecError:
            raise Unavailable(f"{self._label}: its target sent an invalid answer") from None
        finally:
            self.abort()
        if written.size != self._count:
            raise Unavailable(f"{self._label}: its target received {written.size} bytes instead of {self._count}")
        return written

    def abort(self) -> None:
        if not self._ended:
            self._ended = True
            self._kept = bytearray()
            self._forget(self)
            if self._upload is not None:
                self._upload.abort()

    def _finish(self) -> bytes:
        if self._upload is None:
            body = bytes(self._kept)
            self._throttle.take(len(body))
            return self._nodes.retrying(lambda: self._nodes.put(self._find_owner().url + self._path, body))
        self._flush()
        upload, self._upload = self._upload, None
        with upload.finish() as answer:
            if answer.status >= 300:
                raise answer.error(f"PUT {self._label}")
            return answer.read_all(ERROR_BODY_BYTES_MAX)

    def _grow(self, count: int) -> None:
        if self._ended:
            raise ValueError(f"{self._label} is already committed or aborted")
        self._check()
        self._count += count
        if self._size is not None and self._count > self._size:
            self.abort()
            raise LengthMismatch(f"{self._label}: more than the announced {self._size} bytes were written")

    def _flush(self) -> None:
        if self._kept:
            kept, self._kept = self._kept, bytearray()
            self._send(memoryview(kept))

    def _send(self, view: memoryview, files: PlainFiles | None = None) -> None:
        upload = self._begun()
        self._throttle.take(len(view))
        self._watched(upload, lambda: upload.send(view, files) if isinstance(upload, Deposit) else upload.send(view))

    def _watched(self, upload: Upload | Deposit, send: Callable[[], bool]) -> None:
        """Send; if the target answers before the end, raise the error in its answer."""
        if send():
            return
        try:
            with upload.finish() as answer:
                raise answer.error(f"PUT {self._label}")
        finally:
            self.abort()

    def _begun(self) -> Upload | Deposit:
        """Return the upload. Starting it can be retried, since nothing of the body has been sent yet."""
        if self._upload is None:
            self._upload = self._nodes.retrying(self._begin)
        return self._upload

    def _begin(self) -> Upload | Deposit:
        owner = self._find_owner()
        if self._kind in (None, "tar"):  # a compressed shard must be decompressed for its index, which its owner does
            deposit = self._deposits.begin(owner, self._site_path, self._path, self._size, self._kind)
            if deposit is not None:
                return deposit
        upload = self._nodes.begin_put(owner.url + self._path, self._size)
        if upload.wanted:
            return upload
        with upload.finish() as answer:
            raise answer.error(f"PUT {self._label}")
