"""An output that is deposited, worker and target in one process: what `engine.worker.deposits` and the target's route do."""

from __future__ import annotations

import msgspec

from dfc.storage import Disk, Durability, PutResult
from dfc.storage.blobs.deposit import Deposited, DepositFile
from dfc.storage.catalog.changes import StagedName
from dfc.storage.rows import ALWAYS, Precondition
from dfc.tar.index.format import index_kind


def deposit(
    disk: Disk,
    bucket: str,
    name: str,
    data: bytes,
    *,
    owner: StagedName | None,
    durability: Durability = "fsync",
    announced: bool = True,
    step: int = 5000,
    precondition: Precondition = ALWAYS,
) -> PutResult:
    """Through the disk's own `FileSystem`, both halves of it."""
    try:
        file = DepositFile(disk.deposit_site(durability), index_kind(name), disk.parts.filesystem)
    except OSError as error:
        raise disk.parts.health.translate(error, "beginning a deposit") from error  # a worker sends it then
    try:
        size = len(data) if announced else None
        writer = disk.adopt(bucket, name, file.name, size=size, durability=durability, staged=owner)
        try:
            writer.write(b"\n" + msgspec.json.encode(fill(file, data, step)))
            writer.finish()
            return writer.commit(precondition)
        except BaseException:
            writer.abort()
            raise
    finally:
        file.abort()


def fill(file: DepositFile, data: bytes, step: int) -> Deposited:
    """Write it in pieces; what is to be said of it."""
    try:
        for start in range(0, len(data), step):
            file.write(memoryview(data)[start : start + step])
        return file.finish()
    except OSError as error:
        return Deposited(errno=error.errno or 5)
