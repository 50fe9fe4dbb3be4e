"""Lowers the CPU and I/O priority of the thread that runs tasks, in favour of threads that serve reads."""

from __future__ import annotations

import ctypes
import os
import platform
from contextlib import suppress
from typing import Final, Literal

NICE: Final = 10  # gets a tenth of the CPU time of a thread at 0 if both are busy, and all of it if the CPU is idle
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "s390x": 282, "riscv64": 30}
_WHO_PROCESS: Final = 1
_CLASS_IDLE: Final = 3 << 13


def lower_priority(priority: Literal["low", "normal"]) -> None:
    """Lower the nice value and I/O class of the calling thread, as far as Linux allows it.

    Only this thread, so that the one that answers the scheduler in the same process stays responsive. Disks honour the idle
    class with the I/O schedulers bfq and mq-deadline (which lets it through at least every 10 s), but not with `none`.
    """
    if priority != "low" or os.getpriority(os.PRIO_PROCESS, 0) >= NICE:
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, _WHO_PROCESS, 0, _CLASS_IDLE)
