"""Writes outputs directly to the disk of a target on the same machine, without sending them (`dfc.storage.blobs.deposit`).

A byte is then copied twice, as with `cp`, and not four times as through a socket. A request to the target
stays open until the file is complete: if it breaks off, also because this process dies, the target removes the file.
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
from dfc.filesystem import boot_id
from dfc.http.calls.blocking import Response, Upload
from dfc.limits import ERROR_BODY_BYTES_MAX, MIB
from dfc.parts import Part
from dfc.placement.map import NodeEntry
from dfc.storage.blobs.deposit import Deposited, DepositFile, DepositSite, is_here
from dfc.tar.headerbatch import PlainFiles

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
