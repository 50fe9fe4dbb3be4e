"""Free space of a disk: the reserve, the space claimed by running uploads, and the ballast.

Uploads do not use the reserve. The ballast is a file of allocated blocks. When even the catalog runs out of space, it is given
up, so that deletes still work on a full file system; it is created again once there is room.
"""

from __future__ import annotations

import errno
import threading
from typing import Final

from dfc.errors import NoSpace
from dfc.filesystem import FileSystem, file_system_id, remove_if_there
from dfc.storage.layout import BALLAST_FILE
from dfc.storage.rows import DiskSpace

# The catalog's log and shared memory need this much just to be opened.
OPENING_BYTES: Final = 1 << 20


class SpaceKeeper:
    """Decides whether an upload may start and continue. Thread-safe."""

    def __init__(self, root: str, filesystem: FileSystem, *, reserve_bytes: int, ballast_bytes: int) -> None:
        self._root = root
        self._filesystem = filesystem
        self._reserve_bytes = reserve_bytes
        self._ballast_bytes = ballast_bytes
        self._ballast = f"{root}/{BALLAST_FILE}"
        self._lock = threading.Lock()
        self._claimed = 0
        self._ballast_there = False
        self._file_system = file_system_id(root)

    def claim(self, size: int) -> None:
        """Reserve `size` bytes for an upload; NoSpace when they are not free."""
        space = self._filesystem.space(self._root)
        with self._lock:
            left = space.free - self._reserve_bytes - self._claimed
            if size > left:
                raise NoSpace(f"the disk is full: {size} bytes needed, {max(left, 0)} bytes free")
            self._claimed += size

    def require(self, size: int) -> None:
        """Check that `size` bytes are free for a short upload, without claiming them; NoSpace when they are not."""
        left = self._filesystem.space(self._root).free - self._reserve_bytes - self._claimed
        if size > left:
            raise NoSpace(f"the disk is full: {size} bytes needed, {max(left, 0)} bytes free")

    def release(self, size: int) -> None:
        """Return claimed space: it has been written, or the upload has ended."""
        with self._lock:
            self._claimed -= size

    def require_room(self) -> None:
        """Raise NoSpace when only the reserve is left; for uploads of unknown length."""
        if self._filesystem.space(self._root).free < self._reserve_bytes:
            raise NoSpace("the disk is full: only its reserve is left")

    def measure(self) -> DiskSpace:
        space = self._filesystem.space(self._root)
        free = max(0, space.free - self._reserve_bytes)
        return DiskSpace(space.capacity, space.capacity - space.free, free, self._reserve_bytes, self._file_system)

    def prepare_opening(self) -> None:
        """Make room for the catalog's own files before it is opened."""
        if self._filesystem.space(self._root).free < OPENING_BYTES:
            self.give_up_ballast()

    def give_up_ballast(self) -> bool:
        """Unlink the ballast; returns whether there was one."""
        with self._lock:
            self._ballast_there = False
            try:
                self._filesystem.unlink(self._ballast)
            except FileNotFoundError:
                return False
            return True

    def keep_ballast(self) -> bool:
        """Create the ballast if it is missing and there is room for it besides the reserve; returns whether it exists now."""
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
