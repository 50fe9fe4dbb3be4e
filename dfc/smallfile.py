"""Durably write, and carefully read, a node's small files: its id, a disk's identity, the shape of `dfc serve`.

A file is written under another name, synced, renamed, and its directory synced: after a power loss it is either the old one or
the new one, complete. Directories are durable once they are made. So a file that is empty or torn was damaged in another way:
that is an error, which says where the file is and what to do. Nothing is guessed or recreated.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from dfc.checksum import Buffer
from dfc.errors import OperatorError
from dfc.filesystem import FileSystem, remove_if_there, write_all
from dfc.limits import SMALL_FILE_BYTES_MAX

NEW_SUFFIX: Final = ".new"  # a file that is being written; a leftover from a crash is overwritten by the next one


def make_directories(path: str, filesystem: FileSystem) -> None:
    """Create a directory and its missing parents, all durable when this returns. OSError.

    The deepest existing one is made durable too: the process that created it may have been killed before it synced.
    """
    path = os.path.abspath(path)
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    with suppress(PermissionError):  # we cannot have created anything in a directory that we may not read
        filesystem.sync_directory(os.path.dirname(path))
    for directory in reversed(missing):
        with suppress(FileExistsError):
            filesystem.make_directory(directory)
        filesystem.sync_directory(os.path.dirname(directory))


def write_small_file(path: str, data: Buffer, filesystem: FileSystem, mode: int = 0o644) -> None:
    """Write a file atomically in a directory that is durable; the file is durable when this returns. OSError."""
    temporary = path + NEW_SUFFIX
    remove_if_there(filesystem, (temporary,))
    fd = filesystem.create(temporary, mode)
    try:
        write_all(filesystem, fd, data)
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)
    filesystem.rename(temporary, path)
    filesystem.sync_directory(os.path.dirname(path))


class SmallFileDamaged(OperatorError):
    """A small file exists but is empty, torn or unreadable. The message says where it is, what is wrong and what to do."""

    def __init__(self, path: str, what: str, way_out: str) -> None:
        super().__init__(f"{path} {what}. {way_out}")
        self.what = what


def read_small_file(path: str, way_out: str, bytes_max: int = SMALL_FILE_BYTES_MAX) -> bytes | None:
    """Return the content of a file; None if it does not exist. SmallFileDamaged, with `way_out`: what an operator can do."""
    try:
        with open(path, "rb") as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SmallFileDamaged(path, f"cannot be read ({error.strerror})", way_out) from error
    if not data.strip(b"\0 \r\n\t"):
        raise SmallFileDamaged(path, "is empty" if not data else "contains nothing but blanks", way_out)
    if len(data) > bytes_max:
        raise SmallFileDamaged(path, f"is longer than {bytes_max} bytes", way_out)
    return data
