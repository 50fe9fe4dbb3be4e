"""Read and write `dfc-node-id`, the file in a node's directory with its id, one line."""

from __future__ import annotations

import re
import secrets
from typing import Final

from dfc.filesystem import FileSystem
from dfc.placement.map import Role
from dfc.smallfile import SmallFileDamaged, read_small_file, write_small_file

NODE_FILE: Final = "dfc-node-id"
_LINE: Final = re.compile(rb"([A-Za-z0-9._-]{1,64})\n")  # without the line end, it may be truncated


def new_node_id(role: Role) -> str:
    return f"{role}-{secrets.token_hex(4)}"


def node_file(directory: str) -> str:
    return f"{directory}/{NODE_FILE}"


def read_node_id(directory: str) -> str | None:
    """Return the node id stored in a directory; None if there is none. SmallFileDamaged."""
    path = node_file(directory)
    way_out = f"Write the id of this node again (the registry knows it): echo ID > {path}"
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
