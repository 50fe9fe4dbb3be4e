"""Letting others go first: the thread that runs tasks gives way at processors and disks to the threads that serve reads."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from typing import Final, Literal

NICE: Final = 10  # a tenth of the processor time of a thread at 0, when both want it; all of it when nobody else does
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "s390x": 282, "riscv64": 30}
_WHO_PROCESS: Final = 1
_CLASS_IDLE: Final = 3 << 13


def lower_priority(priority: Literal["low", "normal"]) -> None:
    """Set nice and I/O class of the calling thread; what Linux does not allow is left as it is.

    Only the thread: the one that answers the scheduler in the same process stays quick. Disks honour the idle class with the
    schedulers bfq and mq-deadline (which lets it through every 10 s at least), not with `none`.
    """
    if priority != "low" or os.getpriority(os.PRIO_PROCESS, 0) >= NICE:
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, _WHO_PROCESS, 0, _CLASS_IDLE)
