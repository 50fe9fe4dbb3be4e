"""The surroundings of processes that Dask runs in: settings, TLS, a scratch directory, an end that leaves nothing behind."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any, Final, NoReturn

from dfc.engine.wire import SchedulerAddress

LOCK_NAME: Final = "lock"
_PREFIX: Final = "DASK_"
# Of the environment, since Dask's processes read it anew each. What a user has set for a Dask of their own is not for ours.
_DASK: Final = {
    "CONFIG": "/nonexistent",
    "ROOT_CONFIG": "/nonexistent",
    "LOGGING__DISTRIBUTED": "warning",
    # A task whose worker dies is the service's to run again: only it knows how often that may be.
    "DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    # Which worker runs what is decided by `dfc.engine.dispatch`.
    "DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",
    "DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__START": "False",
    # Its web servers cannot be left away; without routes they answer 404 on loopback.
    "DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "[]",
    "DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
    "DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    # What it measures of itself is for its pages, which nobody sees; with two workers it took 7 % of a processor.
    "DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "1m",
    "DISTRIBUTED__ADMIN__SYSTEM_MONITOR__DISK": "False",
    # Workers are forked from a process that has imported everything: the second one is up at once.
    "DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver",
}
_WORKER_IMPORTS: Final = (
    "dfc.engine.worker.run",
    "dfc.engine.worker.store",
    "dfc.engine.worker.priority",
    "dfc.jobs.operations",
)
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # one task a process, one thread a task


def dask_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that imports Dask, made from that of its parent."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_PREFIX)}
    return kept | {_PREFIX + name: value for name, value in _DASK.items()} | dict.fromkeys(_THREADS, "1")


def security(scheduler: SchedulerAddress) -> Any:
    """How a scheduler is reached, in Dask's form and for all roles; imports Dask, so only for processes that run it."""
    from distributed.security import Security

    if not scheduler.address.startswith("tls://"):
        return Security(require_encryption=False)
    roles = ("client", "scheduler", "worker")
    return Security(
        require_encryption=True,
        tls_ca_file=scheduler.ca,
        **{f"tls_{role}_cert": scheduler.cert for role in roles},
        **{f"tls_{role}_key": scheduler.key for role in roles},
    )


def make_scratch(directory: str) -> str:
    """A directory for this process and its children, also for `tempfile`; it goes with `end_group`, or, after a kill, when
    the next process makes its own here."""
    parent = Path(directory)
    parent.mkdir(parents=True, exist_ok=True)
    making = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(making, fcntl.LOCK_EX)
        for old in parent.iterdir():
            if old.is_dir() and _is_abandoned(old):
                shutil.rmtree(old, ignore_errors=True)
        scratch = tempfile.mkdtemp(prefix="run-", dir=parent)
        descriptor = os.open(os.path.join(scratch, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # held, and the descriptor open, for the life of this process
    finally:
        os.close(making)
    os.environ["TMPDIR"] = tempfile.tempdir = scratch
    return scratch


def _is_abandoned(directory: Path) -> bool:
    """Whether the process that made it is gone. Called under the lock of `make_scratch`, so one without a lock is what a power
    loss left of it: nothing here is ever synced."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def take_pipes() -> tuple[int, int]:
    """Standard input and output as descriptors of this process alone: its children, and `print`, get others."""
    pipes = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return pipes


def start_fork_server(scratch: str) -> None:
    """Start the process that workers are forked from. What it imports, each of them has; Dask finds it running."""
    # It is reached through a socket in the scratch directory, whose path may be longer than that of a socket can be.
    tempfile.tempdir = f"/proc/self/fd/{os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}"
    util.get_temp_dir()
    tempfile.tempdir = scratch
    multiprocessing.get_context("forkserver").set_forkserver_preload(["distributed", "distributed.nanny", *_WORKER_IMPORTS])
    forkserver.ensure_running()


def end_group(scratch: str) -> NoReturn:
    """End this process and all that it has started, at once. There is nothing in them that must be kept: outputs that are not
    complete are dropped by the targets."""
    with suppress(OSError):
        # From here no child may write: what they would leave behind could not be removed any more.
        if os.getpgrp() == os.getpid():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)
    shutil.rmtree(scratch, ignore_errors=True)
    with suppress(Exception):
        # Named semaphores: the process that would remove them after us ends with the group.
        util._run_finalizers(0)  # type: ignore[attr-defined]
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
