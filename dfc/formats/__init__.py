"""Formats that samples are converted to and from: one file each, and the table that lists them.

A writer has `add(sample)` and `finish()` over a `Sink`; a reader is a function that yields samples from a `Readable`. No
network; nothing is extracted to disk or evaluated. Layouts: docs/formats.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from dfc.tar.compressor import level_range
from dfc.tar.index.format import index_kind

FormatName = Literal[
    "tar", "tgz", "tar.zst", "tar.lz4", "zip", "directory", "tfrecord", "parquet", "lmdb", "recordio", "sequencefile",
    "dali-index", "wids-index",
]  # fmt: skip
SourceName = Literal["tar", "zip", "directory", "tfrecord", "parquet", "lmdb", "recordio", "sequencefile"]


@dataclass(frozen=True)
class Format:
    """`endings` of the names of its files, `levels` of its compression, `library`: the module it needs, if any."""

    endings: tuple[str, ...]
    kind: str | None = None  # of a tar: what `index_kind` says of its name
    levels: range | None = None
    is_tree: bool = False
    library: str | None = None


FORMATS: Final[dict[FormatName, Format]] = {
    "tar": Format((".tar",), "tar"),
    "tgz": Format((".tgz", ".tar.gz"), "gz", level_range("gz")),
    "tar.zst": Format((".tar.zst",), "zst", level_range("zst")),
    "tar.lz4": Format((".tar.lz4",), "lz4", level_range("lz4")),
    "zip": Format((".zip",), levels=range(10)),
    "directory": Format((), is_tree=True),
    "tfrecord": Format((".tfrecord", ".tfrecords")),
    "parquet": Format((".parquet",), levels=range(20), library="pyarrow"),
    "lmdb": Format((), is_tree=True, library="lmdb"),
    "recordio": Format((".rec",)),
    "sequencefile": Format((".seq",)),
    "dali-index": Format((".idx",)),
    "wids-index": Format((".json",)),
}
INDEXES: Final = ("dali-index", "wids-index")


def source_format(name: str) -> SourceName | None:
    """Which format an object of this name is in; None when its name does not say."""
    lower = name.lower()
    if index_kind(name) is not None:
        return "tar"
    if lower == "data.mdb" or lower.endswith("/data.mdb"):
        return "lmdb"
    for found in ("zip", "tfrecord", "parquet", "recordio", "sequencefile"):
        if lower.endswith(FORMATS[found].endings):
            return found
    return None


def goes_with(name: str) -> tuple[str, ...]:
    """Objects that this one is nothing without: for LMDB's lock the data, for an index the shard beside it. Often none."""
    folder, slash, base = name.rpartition("/")
    if base == "lock.mdb":
        return (f"{folder}{slash}data.mdb",)
    stem, _, ending = name.rpartition(".")
    return (f"{stem}.rec", f"{stem}.tar") if ending == "idx" else ()


def written_format(name: str) -> FormatName | None:
    """Which format an output of this name belongs to by its ending; None for a name that fits any."""
    lower = name.lower()
    fitting = (
        format for format, what in FORMATS.items() if what.endings and format not in INDEXES and lower.endswith(what.endings)
    )
    return next(fitting, "tar" if index_kind(name) else None)
