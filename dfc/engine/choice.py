"""Chooses the engine by the proxy's settings: the cluster's Dask scheduler, or processes on this machine.

On one machine, this is a Dask `LocalCluster`, started for the first task and ended when idle. Its scheduler and nannies live
in a child process of the proxy (`dfc.engine.host`), not in a thread. Importing Dask alone holds the interpreter for half a
second, and its scheduler takes a millisecond of Python per task; in a thread, both would block the proxy's event loop. A child
takes 60 MB and frees them when it ends, while the proxy would stay that much larger. When the proxy is killed, the child's
standard input is closed, and the child ends with all its workers. Everything listens on 127.0.0.1 without TLS: anyone who can
log in to the machine can reach it (docs/operations.md).

In a cluster, the scheduler is a process of its own, with a worker beside each target that reads its disks directly. The proxy
has only a client, in a child process for the same reasons. A scheduler that is not on loopback needs mutual TLS, because Dask
unpickles what its peers send: anyone who can connect can run code. A node does not start with other settings (`dfc.config`).

With several proxies that one process is one too many. Then the child of the coordinator runs the scheduler itself, for the
first task, and heartbeats tell the targets where (`dfc.engine.beside`). The next coordinator has one of its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from dfc.config import COORDINATOR, Settings
from dfc.engine.link import LinkedEngine
from dfc.engine.settings import WorkerSettings
from dfc.engine.wire import Begin, SchedulerAddress


def open_engine(settings: Settings, directory: str, proxy_url: str) -> LinkedEngine:
    """Make the engine for these settings. `directory` is the proxy's; its folder `engine/` gets a log, and scratch space for
    workers on this machine. `proxy_url` is the URL at which nodes reach the proxy."""
    scheduler, serves = None, settings.jobs_scheduler == COORDINATOR
    if serves:
        scheduler = SchedulerAddress.at(settings, urlsplit(proxy_url).hostname or "127.0.0.1")
    elif settings.jobs_scheduler:
        scheduler = SchedulerAddress.of(settings)
    begin = Begin(
        directory=str(Path(directory).absolute() / "engine"),
        workers=0 if settings.jobs_scheduler else settings.jobs_workers or os.cpu_count() or 1,
        settings=WorkerSettings.of(settings, proxy_url).encode(),
        scheduler=scheduler,
        host=settings.host if serves else "",
        serves=serves,
    )
    return LinkedEngine(begin, settings.jobs_engine_idle_s)
