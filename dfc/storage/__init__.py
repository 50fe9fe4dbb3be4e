"""The storage engine for one disk: catalog, blobs, writer, reader, scrubbing. Blocking code for threads; never the network."""

from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.disk import Disk
from dfc.storage.health import DiskStats
from dfc.storage.rows import (
    ALWAYS,
    DiskOptions,
    DiskSpace,
    Durability,
    ListedRow,
    ObjectRow,
    Precondition,
    PutResult,
    QuarantinedObject,
    RowChanged,
)

__all__ = (
    "ALWAYS",
    "BlobWriter",
    "Disk",
    "DiskOptions",
    "DiskSpace",
    "DiskStats",
    "Durability",
    "ListedRow",
    "ObjectRow",
    "Precondition",
    "PutResult",
    "QuarantinedObject",
    "RowChanged",
)
