"""On PYTHONPATH of nodes: disks look all the time for tombstones and records of removed buckets that nobody needs any more, and
keep them for $KEEP_S seconds instead of a week."""

import os

from dfc.storage.rows import DiskOptions
from dfc.storage.upkeep import relaxed
from dfc.target.copies import ledger

_KEEP_S = float(os.environ["KEEP_S"])
_fields = list(DiskOptions.__dataclass_fields__)
_defaults = list(DiskOptions.__init__.__defaults__ or ())
_defaults[_fields.index("tombstone_keep_s")] = _KEEP_S
DiskOptions.__init__.__defaults__ = tuple(_defaults)
relaxed._HOUSEKEEPING_S = _KEEP_S  # type: ignore[misc]
ledger.CALM_S = _KEEP_S  # type: ignore[misc]
