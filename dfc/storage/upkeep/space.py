"""Free space of a disk: the reserve that uploads leave alone, what running uploads have claimed, and the ballast.

The ballast is a file of real blocks. When even the catalog finds no space it is given up, so that deletes still work on
a file system with nothing left; it is made again once there is room.
"""

from __future__ import annotations

import errno
import threading
from typing import Final

from dfc.errors import NoSpace
from dfc.filesystem import FileSystem, remove_if_there
from dfc.storage.layout import BALLAST_FILE
from dfc.storage.rows import DiskSpace

# The catalog's log and shared memory need so much to be opened at all.
OPENING_BYTES: Final = 1 << 20


class SpaceKeeper:
    """Answers "may this upload start" and "may it go on". Thread-safe."""

    def __init__(self, root: str, filesystem: FileSystem, *, reserve_bytes: int, ballast_bytes: int) -> None:
        self._root = root
        self._filesystem = filesystem
        self._reserve_bytes = reserve_bytes
        self._ballast_bytes = ballast_bytes
        self._ballast = f"{root}/{BALLAST_FILE}"
        self._lock = threading.Lock()
        self._claimed = 0
        self._ballast_there = False

    def claim(self, size: int) -> None:
        """Set `size` bytes of free space aside for an upload; NoSpace when they are not there."""
        space = self._filesystem.space(self._root)
        with self._lock:
            left = space.free - self._reserve_bytes - self._claimed
            if size > left:
                raise NoSpace(f"the disk is full: {size} bytes needed, {max(left, 0)} bytes free")
            self._claimed += size

    def require(self, size: int) -> None:
        """NoSpace when `size` bytes, for an upload that is over in an instant, are not there."""
        left = self._filesystem.space(self._root).free - self._reserve_bytes - self._claimed
        if size > left:
            raise NoSpace(f"the disk is full: {size} bytes needed, {max(left, 0)} bytes free")

    def release(self, size: int) -> None:
        """Give back what was claimed: it has been written, or the upload has ended."""
        with self._lock:
            self._claimed -= size

    def require_room(self) -> None:
        """NoSpace when the reserve has been reached; for uploads that did not announce their length."""
        if self._filesystem.space(self._root).free < self._reserve_bytes:
            raise NoSpace("the disk is full: only its reserve is left")

    def measure(self) -> DiskSpace:
        space = self._filesystem.space(self._root)
        free = max(0, space.free - self._reserve_bytes)
        return DiskSpace(space.capacity, space.capacity - space.free, free, self._reserve_bytes)

    def prepare_opening(self) -> None:
        """Make room for the catalog's own files before it is opened."""
        if self._filesystem.space(self._root).free < OPENING_BYTES:
            self.give_up_ballast()

    def give_up_ballast(self) -> bool:
        """Unlink the ballast; whether there was one."""
        with self._lock:
            self._ballast_there = False
            try:
                self._filesystem.unlink(self._ballast)
            except FileNotFoundError:
                return False
            return True

    def keep_ballast(self) -> bool:
        """Make the ballast where it is missing and there is room for it besides the reserve; whether it is there now."""
        if self._ballast_there or self._ballast_bytes == 0:
            return True
        with self._lock:
            if self._filesystem.space(self._root).free < self._reserve_bytes + 2 * self._ballast_bytes:
                return False
            try:
                self._allocate_ballast()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                remove_if_there(self._filesystem, (self._ballast,))
                return False
            self._ballast_there = True
            return True

    def _allocate_ballast(self) -> None:
        try:
            fd = self._filesystem.create(self._ballast)
        except FileExistsError:
            fd = self._filesystem.open(self._ballast, write=True)
        try:
            self._filesystem.allocate(fd, self._ballast_bytes)
        finally:
            self._filesystem.close(fd)
