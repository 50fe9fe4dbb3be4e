"""What a worker must know of the cluster and may use of its machine; goes with every task."""

from __future__ import annotations

from typing import Literal

import msgspec

from dfc.config import Settings


class WorkerSettings(msgspec.Struct, frozen=True):
    """`proxy_url` is for nodes, and may be several, separated by commas. `memory_bytes` is what a task may use for buffers;
    `io_bytes_per_s` what a worker may read and write, 0 for any; `priority` "low" lets others have processor and disk first."""

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
        """From the proxy's own settings."""
        return cls(
            proxy_url=proxy_url.rstrip("/"),
            token=settings.token,
            memory_bytes=settings.jobs_memory_bytes,
            io_bytes_per_s=settings.jobs_io_bytes_per_s,
            priority=settings.jobs_priority,
        )
