"""Read and write `dfc-node-id` and `dfc-cluster-id`, files in a node's directory with one id each."""

from __future__ import annotations

import re
import secrets
from typing import Final

from dfc.filesystem import FileSystem
from dfc.placement.map import Role
from dfc.smallfile import SmallFileDamaged, read_small_file, write_small_file

NODE_FILE: Final = "dfc-node-id"
CLUSTER_FILE: Final = "dfc-cluster-id"  # of a proxy whose registry is in etcd
_LINE: Final = re.compile(rb"([A-Za-z0-9._-]{1,64})\n")  # without the line end, it may be truncated


def new_node_id(role: Role) -> str:
    return f"{role}-{secrets.token_hex(4)}"


def node_file(directory: str) -> str:
    return f"{directory}/{NODE_FILE}"


def read_node_id(directory: str) -> str | None:
    """Return the node id stored in a directory; None if there is none. SmallFileDamaged."""
    path = node_file(directory)
    return _read(path, f"Write the id of this node again (the registry knows it): echo ID > {path}")


def read_cluster_id(directory: str) -> str | None:
    """Return the id of the cluster in etcd of which the proxy in a directory was; None if of none. SmallFileDamaged."""
    path = f"{directory}/{CLUSTER_FILE}"
    return _read(path, f"Remove it if the settings `etcd_urls` and `etcd_prefix` are right: rm {path}")


def _read(path: str, way_out: str) -> str | None:
    data = read_small_file(path, way_out)
    if data is None:
        return None
    line = _LINE.fullmatch(data)
    if line is None:
        raise SmallFileDamaged(path, "is torn: it should contain an id and a line end", way_out)
    return line[1].decode()


def write_node_id(directory: str, node_id: str, filesystem: FileSystem) -> None:
    """Store the node id durably. OSError."""
    write_small_file(node_file(directory), f"{node_id}\n".encode(), filesystem)


def write_cluster_id(directory: str, cluster_id: str, filesystem: FileSystem) -> None:
    """Store the id of a cluster durably. OSError."""
    write_small_file(f"{directory}/{CLUSTER_FILE}", f"{cluster_id}\n".encode(), filesystem)
