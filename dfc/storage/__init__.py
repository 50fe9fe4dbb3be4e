"""The storage engine for one disk: catalog, blobs, writer, reader, scrubbing. Blocking code for threads; never the network."""

from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.disk import Disk
from dfc.storage.preconditions import ALWAYS, Precondition
from dfc.storage.rows import DiskOptions, DiskSpace, Durability, ListedRow, ObjectRow, PutResult, QuarantinedObject, RowChanged
from dfc.storage.stats import DiskStats

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
