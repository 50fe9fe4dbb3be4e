"""The newest cluster map in a file on every disk of a target, and how it is read. Blocking."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from dfc.errors import OperatorError
from dfc.filesystem import FileSystem
from dfc.limits import CLUSTER_MAP_BYTES_MAX
from dfc.placement.map import ClusterMap
from dfc.smallfile import SmallFileDamaged, read_small_file, write_small_file

_log: Final = logging.getLogger("dfc.target")
FILE: Final = "dfc-map.json"
FORMAT: Final = 1


class MapFile(msgspec.Struct, frozen=True):
    """The contents of the file."""

    format: int
    map: ClusterMap


def write_map(directory: str, cluster_map: ClusterMap, filesystem: FileSystem) -> None:
    """Write the map to a disk, durably. OSError."""
    write_small_file(os.path.join(directory, FILE), msgspec.json.encode(MapFile(FORMAT, cluster_map)), filesystem)


def read_maps(directories: Sequence[str], cluster_id: str) -> ClusterMap | None:
    """Return the newest map of a cluster on these disks; None if there is none that can be read.

    Files that are damaged or of another version of DFC are skipped, since they are written anew when the registry answers.
    """
    found = []
    for directory in directories:
        try:
            kept = read_map(directory)
        except OperatorError as error:
            _log.warning("%s", error)
            continue
        if kept is not None and kept.cluster_id == cluster_id:
            found.append(kept)
    return max(found, key=lambda kept: kept.version, default=None)


def read_map(directory: str) -> ClusterMap | None:
    """Return the map on a disk; None if there is none. OperatorError if it cannot be used."""
    path = os.path.join(directory, FILE)
    try:
        data = read_small_file(path, "It is written again once the registry answers.", CLUSTER_MAP_BYTES_MAX)
        kept = None if data is None else msgspec.json.decode(data, type=MapFile)
    except (SmallFileDamaged, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OperatorError(f"{path} is not used: {error}") from error
    if kept is not None and kept.format != FORMAT:
        raise OperatorError(f"{path} is not used: it is of format {kept.format}, and this version of DFC reads format {FORMAT}")
    return None if kept is None else kept.map
