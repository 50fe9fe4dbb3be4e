"""Outputs that this worker writes into files of a target of its own machine (`dfc.storage.blobs.deposit`): nothing is sent.

A byte is copied twice then, as `cp` does, and not four times through a socket. The request that goes with the file is begun
first and ends last: whatever ends it, the end of this process too, ends what is left of the file.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from dfc.checksum import Buffer
from dfc.engine.worker.nodes import Nodes
from dfc.errors import ObjectCorrupt
from dfc.http.calls.blocking import ERROR_BODY_BYTES_MAX, Response, Upload
from dfc.limits import MIB
from dfc.parts import Part
from dfc.placement.map import NodeEntry
from dfc.storage.blobs.deposit import Deposited, DepositFile, DepositSite, boot_id, is_here
from dfc.tar.headerbatch import PlainFiles

COPY_BYTES: Final = 1 * MIB
TELL_S: Final = 60.0  # between two signs of life, where not much is written: the target waits for JOB_OUTPUT_PAUSE_S
_NO_ERRNO: Final = errno.EIO  # of an error without a number


class Deposit:
    """An output under way. It is used as an `Upload` is."""

    def __init__(self, upload: Upload, file: DepositFile) -> None:
        self._upload = upload
        self._file = file
        self._failed = False
        self._told_s = time.monotonic()

    def send(self, data: Buffer, files: PlainFiles | None = None) -> bool:
        """The next bytes, all of them; whether more are wanted. NoSpace."""
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
        """The next bytes, some of them from files; whether more are wanted. ObjectCorrupt when a file has fewer."""
        buffer = memoryview(bytearray(min(COPY_BYTES, max((count for _, _, _, count in parts), default=0))))
        for data, file, offset, count in parts:
            if len(data) and not self.send(data):
                return False
            while count:
                got = os.preadv(file, [buffer[: min(count, len(buffer))]], offset)
                if got == 0:
                    raise ObjectCorrupt(f"a file ends at byte {offset}, {count} bytes early")
                if not self.send(buffer[:got]):
                    return False
                offset, count = offset + got, count - got
        return True

    def finish(self) -> Response:
        """Tell the target that the file is complete, and read the head of its answer."""
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
        """End the request, so that the target removes the file. Idempotent."""
        self._file.abort()
        self._upload.abort()

    def _fail(self, error: OSError) -> bool:
        """Let the target hear of an error of its disk: it counts it, and answers as if it had met it itself."""
        self._failed = True
        self._upload.send(msgspec.json.encode(Deposited(errno=error.errno or _NO_ERRNO)))
        return False


class Deposits:
    """Knows which targets have no disk that this process can write to."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._far: set[str] = set()
        self._boot = boot_id()

    def begin(self, owner: NodeEntry, site_path: str, path: str, size: int | None, kind: str | None) -> Deposit | None:
        """Begin an output of the target's; None where it has to be sent. One try: raises like a request."""
        if owner.id in self._far:
            return None
        with self._nodes.get(owner.url + site_path) as answer:
            site = msgspec.json.decode(answer.read_all(ERROR_BODY_BYTES_MAX), type=DepositSite)
        try:
            file = DepositFile(site, kind) if is_here(site, self._boot) else None
        except OSError:
            file = None  # seen, but not to be written to
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
