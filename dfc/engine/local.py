"""The engine of one machine: a Dask `LocalCluster` of processes, started by the first task, ended when it is idle.

Scheduler and nannies live in a child process of the proxy (`dfc.engine.host`), not in a thread of it. Importing Dask alone
holds the interpreter for half a second, its scheduler works in Python for a millisecond a task, and both would stop the
proxy's event loop meanwhile; a child takes 60 MB instead of making the proxy that much larger for good, gives them back when it
ends, and takes all workers with it when the proxy is killed, because its standard input closes then.

Everything listens on 127.0.0.1 and without TLS: whoever may log in to the machine may reach it (docs/operations.md).
"""

from __future__ import annotations

import os
from pathlib import Path

from dfc.config import Settings
from dfc.engine.link import LinkedEngine
from dfc.engine.settings import WorkerSettings
from dfc.engine.wire import Begin


def local_engine(settings: Settings, directory: str, worker: WorkerSettings) -> LinkedEngine:
    """`directory` is the node's own; scratch space and log are made in `engine/` below it."""
    begin = Begin(
        directory=str(Path(directory).absolute() / "engine"),
        workers=settings.jobs_workers or os.cpu_count() or 1,
        settings=worker.encode(),
    )
    return LinkedEngine(begin, settings.jobs_engine_idle_s)
