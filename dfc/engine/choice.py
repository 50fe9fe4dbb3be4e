"""The engine that the settings of a proxy ask for."""

from __future__ import annotations

from dfc.config import Settings
from dfc.engine.base import Engine
from dfc.engine.dask import dask_engine
from dfc.engine.local import local_engine
from dfc.engine.settings import WorkerSettings


def open_engine(settings: Settings, directory: str, proxy_url: str) -> Engine:
    """`directory` is the proxy's, `proxy_url` the URL under which nodes reach it."""
    worker = WorkerSettings.of(settings, proxy_url)
    return (dask_engine if settings.jobs_scheduler else local_engine)(settings, directory, worker)
