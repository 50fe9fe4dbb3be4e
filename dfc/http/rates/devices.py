"""How busy the block device below a directory is, as Linux counts it."""

from __future__ import annotations

import os
from typing import Final

# In the file `stat` of a block device: milliseconds in which it had requests (Documentation/block/stat.rst of Linux).
BUSY_MS_AT: Final = 9
BLOCK_DEVICES: Final = "/sys/dev/block"


class Device:
    """The block device of a directory. Making one asks the file system, which may block; `busy_s` asks the kernel alone, and
    is done in some microseconds whatever the device does."""

    def __init__(self, directory: str, devices: str = BLOCK_DEVICES) -> None:
        number = os.stat(directory).st_dev
        self._path = f"{devices}/{os.major(number)}:{os.minor(number)}/stat"

    def busy_s(self) -> float | None:
        """Return for how long it has had something to do since the system was started; None if there is no such device, as with
        file systems in memory, over the network, or of several devices."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                return int(file.read(512).split()[BUSY_MS_AT]) / 1000
        except (OSError, ValueError, IndexError):
            return None
