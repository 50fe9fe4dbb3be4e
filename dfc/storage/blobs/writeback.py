"""Write out a file while it grows, so that the sync at its end is short."""

from __future__ import annotations

from dfc.filesystem import FileSystem


class Writeback:
    """Starts writing out each piece of a growing file and, if the file is to be durable, waits for the piece before. So at most
    two pieces are unwritten at any time, while one is always on its way to the medium."""

    def __init__(self, filesystem: FileSystem, piece_bytes: int, durable: bool) -> None:
        self._filesystem = filesystem
        self._piece_bytes = piece_bytes
        self._durable = durable
        self._waited = 0
        self.started = 0
        """Bytes for which writing has started."""

    def is_due(self, size: int) -> bool:
        """Whether the file has grown by a whole piece since the last one."""
        return size - self.started >= self._piece_bytes

    def start(self, fd: int, size: int) -> None:
        """Start writing out the bytes since the last call. Raises OSError, also for the previous piece."""
        start, self.started = self.started, size
        self._filesystem.start_writeback(fd, start, size - start)
        if self._durable and start > self._waited:
            self._filesystem.start_writeback(fd, self._waited, start - self._waited, wait=True)
            self._waited = start
