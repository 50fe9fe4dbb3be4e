"""The protocol between a node and its engine process, over a pair of pipes: msgpack in frames with a 4-byte length. Pure.

node → engine: `Begin` once, then `RunRequest` and `Cancel`; the end of the pipe means that the node is gone.
engine → node: `WorkerSlots` whenever the number of workers changes, `Done` or `Lost` for each `RunRequest` not cancelled;
`Listening` once, if it runs the scheduler for workers elsewhere.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

import msgspec

from dfc.config import Settings

FRAME_BYTES_MAX: Final = 64 << 20  # payloads are kilobytes; what is larger goes through temporary objects
_LENGTH_BYTES: Final = 4


class SchedulerAddress(msgspec.Struct, frozen=True):
    """A Dask scheduler, `tls://HOST:PORT` or `tcp://` on loopback; the files are PEM and empty for `tcp`."""

    address: str
    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def of(cls, settings: Settings, address: str = "") -> SchedulerAddress:
        """Take it from settings that name one, or that which is given."""
        return cls(address or settings.jobs_scheduler, settings.jobs_tls_ca, settings.jobs_tls_cert, settings.jobs_tls_key)

    @classmethod
    def at(cls, settings: Settings, host: str) -> SchedulerAddress:
        """The one that a proxy itself runs; `host`: by what others reach it. On loopback it may be without certificates."""
        scheme = "tls" if settings.jobs_tls_ca else "tcp"
        return cls.of(settings, f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.jobs_scheduler_port}")

    @property
    def scheme(self) -> str:
        return urlsplit(self.address).scheme

    @property
    def host(self) -> str:
        return urlsplit(self.address).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The first message. `scheduler` None: run one with `workers` processes. `serves`: run that one, for workers elsewhere;
    port 0 is any. `settings` are passed on with every task."""

    directory: str
    workers: int
    settings: bytes = b""
    scheduler: SchedulerAddress | None = None
    name: str = ""  # of the node, for workers beside a target
    host: str = ""  # what is run here listens on; empty: chosen by the route to the scheduler
    serves: bool = False


class RunRequest(msgspec.Struct, frozen=True, tag="run"):
    """Run one task; the node chooses `number`."""

    number: int
    task: bytes
    near: str | None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    number: int


class WorkerSlots(msgspec.Struct, frozen=True, tag="slots"):
    count: int


class Listening(msgspec.Struct, frozen=True, tag="listening"):
    """By what workers reach the scheduler."""

    address: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The answer to a task, as `dfc.engine.answers` encoded it on the worker."""

    number: int
    answer: bytes


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    number: int
    reason: str


ToEngine = Begin | RunRequest | Cancel
FromEngine = WorkerSlots | Listening | Done | Lost
TO_ENGINE: Final = msgspec.msgpack.Decoder(Begin | RunRequest | Cancel)
FROM_ENGINE: Final = msgspec.msgpack.Decoder(WorkerSlots | Listening | Done | Lost)


def frame(message: ToEngine | FromEngine) -> bytes:
    """Encode one message. ValueError if it is too large."""
    data = msgspec.msgpack.encode(message)
    if len(data) > FRAME_BYTES_MAX:
        raise ValueError(f"a message of {len(data)} bytes to or from the engine is too large (more than {FRAME_BYTES_MAX})")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Read the next message, still encoded; None at the end of the pipe."""
    try:
        size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        return None
