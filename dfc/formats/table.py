"""The table of formats, and the indexes that other libraries want beside shards.

In the table are shards, trees, indexes, and every module of this package with a `FORMAT`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

import msgspec

from dfc import formats
from dfc.errors import Conflict
from dfc.formats.base import FileFormat
from dfc.tar.compression import level_range
from dfc.tar.index.format import index_kind
from dfc.tar.index.reader import ShardIndex


@dataclass(frozen=True)
class Format:
    """A format: `endings` of file names, `levels` of compression, and the `library` that it needs, if any.

    `file` is set for a format that holds samples in single files.
    """

    endings: tuple[str, ...]
    kind: str | None = None  # of a tar: what `index_kind` says of its name
    levels: range | None = None
    is_tree: bool = False
    library: str | None = None
    file: FileFormat | None = None


def _file_formats() -> dict[str, Format]:
    """The modules of this package that have a `FORMAT`, by their names."""
    found = {}
    for module in sorted(each.name for each in iter_modules(formats.__path__) if each.name != "table"):
        file = getattr(import_module(f"{formats.__name__}.{module}"), "FORMAT", None)
        if file is not None:
            found[module] = Format(file.endings, levels=file.levels, library=file.library, file=file)
    return found


FORMATS: Final[dict[str, Format]] = {
    "tar": Format((".tar",), "tar"),
    "tgz": Format((".tgz", ".tar.gz"), "gz", level_range("gz")),
    "tar.zst": Format((".tar.zst",), "zst", level_range("zst")),
    "tar.lz4": Format((".tar.lz4",), "lz4", level_range("lz4")),
    "directory": Format((), is_tree=True),
    "lmdb": Format((), is_tree=True, library="lmdb"),
    "dali-index": Format((".idx",)),
    "wids-index": Format((".json",)),
    **_file_formats(),
}
INDEXES: Final = ("dali-index", "wids-index")

if TYPE_CHECKING:
    FormatName = str
    SourceName = str
else:  # options of jobs are decoded as these: another name is refused, and the help lists them
    FormatName = Literal[tuple(FORMATS)]
    SourceName = Literal[("tar", "directory", "lmdb", *(name for name, what in FORMATS.items() if what.file))]


def source_format(name: str) -> SourceName | None:
    """Which format an object of this name is in; None when its name does not say."""
    lower = name.lower()
    if index_kind(name) is not None:
        return "tar"
    if lower == "data.mdb" or lower.endswith("/data.mdb"):
        return "lmdb"
    return next((format for format, what in FORMATS.items() if what.file and lower.endswith(what.endings)), None)


def goes_with(name: str) -> tuple[str, ...]:
    """Objects that this one is useless without: for LMDB's lock the data, for an index the shard beside it. Often none."""
    folder, slash, base = name.rpartition("/")
    if base == "lock.mdb":
        return (f"{folder}{slash}data.mdb",)
    stem, dot, ending = name.rpartition(".")
    shards = (".tar",) if dot + ending in FORMATS["dali-index"].endings else ()
    indexed = (what.endings for what in FORMATS.values() if what.file and dot and what.file.index_ending == dot + ending)
    return tuple(stem + each for endings in (*indexed, shards) for each in endings)


def written_format(name: str) -> FormatName | None:
    """Which format an output of this name belongs to by its ending; None for a name that fits any."""
    lower = name.lower()
    fitting = (format for format, what in FORMATS.items() if format not in INDEXES and lower.endswith(what.endings))
    return next(fitting, "tar" if index_kind(name) else None)


# --- The index that NVIDIA DALI's webdataset reader takes beside an uncompressed tar, version 1.2.
#
# First line `v1.2 N`; then a line a sample, `EXTENSION OFFSET SIZE NAME` of each member, separated by spaces; the offset is
# that of the data in the tar. Source: NVIDIA/DALI tools/wds2idx.py.


def dali_index(index: ShardIndex, file: str) -> Iterator[bytes]:
    """The lines of the index. Conflict for a name that DALI would misread: white space separates fields, without escapes."""
    yield b"v1.2 %d\n" % index.sample_count
    for sample in index.samples():
        parts = []
        for member in sample.members:
            extension = member.name[len(sample.key) + 1 :]
            if not extension or len(member.name.split()) != 1 or member.name.split()[0] != member.name:
                raise Conflict(f"{file}: DALI's index cannot hold the name {member.name[:80]!r}")
            parts.append(f"{extension} {member.offset} {member.size} {member.name}")
        yield " ".join(parts).encode() + b"\n"


# --- The JSON that wids opens a dataset by: its shards with their numbers of samples. Source: wids 0.1.11, wids_specs.py.
#
# Addresses of shards are relative to where the index itself lies, so that it works on any node, and on a copy of both.


def wids_index(name: str, location: str, shards: Iterable[tuple[str, int, int]]) -> bytes:
    """`location` is `BUCKET/NAME` of the index; a shard is (`BUCKET/NAME`, samples, size in bytes)."""
    base = "/" + posixpath.dirname(location)
    rows = [
        {"url": quote(posixpath.relpath("/" + where, base)), "nsamples": samples, "filesize": size}
        for where, samples, size in shards
    ]
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": name, "base": base + "/", "shardlist": rows}
    return msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n"
