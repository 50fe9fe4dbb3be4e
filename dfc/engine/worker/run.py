"""`run_task`, which Dask calls in a worker with bytes and which returns bytes; and the priority of its thread.

A process runs one task at a time. What is expensive to set up (connections, the map, open shards and indexes) is kept for the
next task and closed when the worker has been idle for a while.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from dfc.engine.base import WorkerSettings
    from dfc.engine.worker.store import Workshop

IDLE_S: Final = 30.0  # an idle worker then closes its files: until then deleted shards take up space

_lock: Final = threading.Lock()
_workshop: Workshop | None = None
_closing: threading.Timer | None = None


def run_task(task: bytes, settings: bytes) -> bytes:
    """Run a task (msgpack of `Task`) with settings (msgpack of `WorkerSettings`). Never raises: errors are encoded, too."""
    # Imported here, because the process that submits this function to Dask does not need them.
    from dfc.engine.base import encode_error, encode_result

    try:
        import msgspec

        from dfc.engine.base import WorkerSettings
        from dfc.jobs.operations import find_function
        from dfc.jobs.tasks import Task, TaskRun
        from dfc.wire import prepare_structs

        prepare_structs()  # a task that was withdrawn may still run, in another thread
        todo = msgspec.msgpack.decode(task, type=Task)
        with _lock:  # one task at a time, even if a withdrawn one has not noticed it yet
            workshop = _open(WorkerSettings.decode(settings))
            try:
                with workshop.store(todo) as store:
                    store.check()
                    begun = time.monotonic()
                    result = find_function(todo.function)(todo, store)
                    run = TaskRun(_own_name(), time.monotonic() - begun)
                    return encode_result(msgspec.structs.replace(result, run=run))
            finally:
                _close_later()
    except Exception as error:
        return encode_error(error)


def _own_name() -> str:
    """The name of this worker; empty outside of Dask."""
    from distributed import get_worker

    try:
        return str(get_worker().name)
    except ValueError:
        return ""


def _open(settings: WorkerSettings) -> Workshop:
    from dfc.engine.worker.store import Workshop

    global _workshop
    if _closing is not None:
        _closing.cancel()
    lower_priority(settings.priority)
    if _workshop is None or _workshop.settings != settings:
        if _workshop is not None:
            _workshop.close()
        _workshop = Workshop(settings)
    return _workshop


def _close_later() -> None:
    global _closing
    _closing = threading.Timer(IDLE_S, _close_idle)
    _closing.daemon = True
    _closing.start()


def _close_idle() -> None:
    global _workshop
    if _lock.acquire(blocking=False):
        try:
            if _workshop is not None:
                _workshop.close()
            _workshop = None
        finally:
            _lock.release()


# --- Lowers the CPU and I/O priority of the thread that runs tasks, in favour of threads that serve reads.

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
