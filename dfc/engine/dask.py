"""The engine of a cluster: an external Dask scheduler, and a worker beside each target that reads its disks directly.

The proxy holds only a client, again in a process of its own (see `dfc.engine.local` for why). A scheduler that is not on
loopback is reached by mutual TLS or not at all: Dask unpickles what its peers send, so whoever may connect may run code. The
settings are refused otherwise when the node starts (`dfc.config`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dfc.config import Settings
from dfc.engine.link import LinkedEngine
from dfc.engine.settings import WorkerSettings
from dfc.engine.wire import Begin, SchedulerAddress


def dask_engine(settings: Settings, directory: str, worker: WorkerSettings) -> LinkedEngine:
    """`directory` is the node's own; a log is kept in `engine/` below it."""
    begin = Begin(
        directory=str(Path(directory).absolute() / "engine"),
        workers=0,
        settings=worker.encode(),
        scheduler=scheduler_address(settings),
    )
    return LinkedEngine(begin, settings.jobs_engine_idle_s)


def scheduler_address(settings: Settings) -> SchedulerAddress:
    """From settings that name one."""
    return SchedulerAddress(settings.jobs_scheduler, settings.jobs_tls_ca, settings.jobs_tls_cert, settings.jobs_tls_key)


def security(scheduler: SchedulerAddress) -> Any:
    """Dask's form of it, for all roles; imports Dask, so only for processes that run it."""
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
