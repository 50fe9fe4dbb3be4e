"""What runs in a worker process: `run_task` is all that Dask ever carries, bytes in and bytes out.

A task has the process for itself. What is dear to make anew (connections, the map, open shards and indexes) is kept from one
task to the next, and given back when the worker has had nothing to do for a while.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dfc.engine.settings import WorkerSettings
    from dfc.engine.worker.store import Workshop

IDLE_S: Final = 30.0  # a worker without tasks closes what it holds open: deleted shards keep their space until then

_lock: Final = threading.Lock()
_workshop: Workshop | None = None
_closing: threading.Timer | None = None


def run_task(task: bytes, settings: bytes) -> bytes:
    """Run a task (msgpack of `Task`) with settings (msgpack of `WorkerSettings`); never raises: errors are answers, too."""
    # Here, since the process that only names this function to Dask has no use for what it needs.
    from dfc.engine.answers import encode_error, encode_result

    try:
        import msgspec

        from dfc.engine.settings import WorkerSettings
        from dfc.jobs.operations import find_function
        from dfc.jobs.tasks import Task

        todo = msgspec.msgpack.decode(task, type=Task)
        with _lock:  # one task at a time, also when Dask has taken one back that does not know it yet
            workshop = _open(WorkerSettings.decode(settings))
            try:
                with workshop.store(todo) as store:
                    store.check()
                    return encode_result(find_function(todo.function)(todo, store))
            finally:
                _close_later()
    except Exception as error:
        return encode_error(error)


def _open(settings: WorkerSettings) -> Workshop:
    from dfc.engine.worker.priority import lower_priority
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
