"""The engine that the settings of a proxy ask for: a cluster's Dask scheduler, or processes on this machine.

On one machine that is a Dask `LocalCluster`, started by the first task, ended when it is idle. Its scheduler and nannies live
in a child process of the proxy (`dfc.engine.host`), not in a thread of it. Importing Dask alone holds the interpreter for half
a second, its scheduler works in Python for a millisecond a task, and both would stop the proxy's event loop meanwhile; a child
takes 60 MB instead of making the proxy that much larger for good, gives them back when it ends, and takes all workers with it
when the proxy is killed, because its standard input closes then. Everything listens on 127.0.0.1 and without TLS: whoever may
log in to the machine may reach it (docs/operations.md).

In a cluster the scheduler runs for itself, with a worker beside each target that reads its disks directly. The proxy holds only
a client, in a child for the same reasons. A scheduler that is not on loopback is reached by mutual TLS or not at all: Dask
unpickles what its peers send, so whoever may connect may run code. The settings are refused otherwise when the node starts
(`dfc.config`).
"""

from __future__ import annotations

import os
from pathlib import Path

from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.engine.link import LinkedEngine
from dfc.engine.settings import WorkerSettings
from dfc.engine.wire import Begin, SchedulerAddress


def open_engine(settings: Settings, directory: str, proxy_url: str) -> Engine:
    """`directory` is the proxy's: a log, and scratch space for workers on this machine, are made in `engine/` below it.
    `proxy_url` is the URL under which nodes reach it."""
    begin = Begin(
        directory=str(Path(directory).absolute() / "engine"),
        workers=0 if settings.jobs_scheduler else settings.jobs_workers or os.cpu_count() or 1,
        settings=WorkerSettings.of(settings, proxy_url).encode(),
        scheduler=SchedulerAddress.of(settings) if settings.jobs_scheduler else None,
    )
    return LinkedEngine(begin, settings.jobs_engine_idle_s)
