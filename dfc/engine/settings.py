"""The settings of a worker, sent with every task: how to reach the cluster, and how much of the machine to use."""

from __future__ import annotations

from typing import Literal

import msgspec

from dfc.config import Settings


class WorkerSettings(msgspec.Struct, frozen=True):
    """The settings of a worker. `proxy_url` is the URL for nodes, or several, separated by commas. `memory_bytes` limits the
    buffers of a task, `io_bytes_per_s` its reading and writing (0: no limit); `priority` "low": others go first."""

    proxy_url: str
    token: str = ""
    memory_bytes: int = 256 << 20
    io_bytes_per_s: int = 0
    priority: Literal["low", "normal"] = "low"
    connect_timeout_s: float = 10.0

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> WorkerSettings:
        return msgspec.msgpack.decode(data, type=cls)

    @classmethod
    def of(cls, settings: Settings, proxy_url: str) -> WorkerSettings:
        """Derive them from the proxy's settings."""
        return cls(
            proxy_url=proxy_url.rstrip("/"),
            token=settings.token,
            memory_bytes=settings.jobs_memory_bytes,
            io_bytes_per_s=settings.jobs_io_bytes_per_s,
            priority=settings.jobs_priority,
        )
