"""The process of an engine: its protocol with the node, its environment, and how it ends."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import msgspec

from dfc.config import Settings

# --- The protocol between a node and its engine process, over a pair of pipes: msgpack in frames with a 4-byte length. Pure.
#
# node → engine: `Begin` once, then `RunRequest` and `Cancel`; the end of the pipe means that the node is gone. engine → node:
# `WorkerSlots` whenever the number of workers changes, `Done` or `Lost` for each `RunRequest` not cancelled; `Listening` once,
# if it runs the scheduler for workers elsewhere.

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
    """The answer to a task, as `dfc.engine.base` encoded it on the worker."""

    number: int
    answer: bytes


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    number: int
    reason: str


ToEngine = Begin | RunRequest | Cancel
FromEngine = WorkerSlots | Listening | Done | Lost
TO_ENGINE: Final = msgspec.msgpack.Decoder(ToEngine)
FROM_ENGINE: Final = msgspec.msgpack.Decoder(FromEngine)


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


async def read_begin(pipe: int) -> tuple[Begin, asyncio.StreamReader]:
    """Read the first message from the pipe of an engine process, which ends if there is none; return what reads the others."""
    reader = asyncio.StreamReader()
    file = os.fdopen(pipe, "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    begun = await read_frame(reader)
    if begun is None:
        sys.exit(0)
    begin = TO_ENGINE.decode(begun)
    assert isinstance(begin, Begin)
    return begin, reader


# --- Sets up and tears down processes that run Dask: environment, TLS, pipes, scratch directory, process group.

LOCK_NAME: Final = "lock"
_PREFIX: Final = "DASK_"
# Environment variables, because each of Dask's processes reads them. Settings for a user's own Dask must not apply here.
_DASK: Final = {
    "CONFIG": "/nonexistent",
    "ROOT_CONFIG": "/nonexistent",
    "LOGGING__DISTRIBUTED": "warning",
    # The jobs service retries tasks whose worker died: only it knows how often.
    "DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    # Which worker runs what is decided by `dfc.engine.host`.
    "DISTRIBUTED__SCHEDULER__WORK_STEALING": "False",
    "DISTRIBUTED__SCHEDULER__ACTIVE_MEMORY_MANAGER__START": "False",
    # Its web servers cannot be turned off; without routes they answer 404 on loopback.
    "DISTRIBUTED__SCHEDULER__HTTP__ROUTES": "[]",
    "DISTRIBUTED__WORKER__HTTP__ROUTES": "[]",
    "DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    # Its self-monitoring is for its dashboard, which is off; with two workers it took 7 % of a processor.
    "DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "1m",
    "DISTRIBUTED__ADMIN__SYSTEM_MONITOR__DISK": "False",
    # Workers are forked from a process that has imported everything, so all but the first start at once.
    "DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD": "forkserver",
}
_WORKER_IMPORTS: Final = ("dfc.engine.worker.run", "dfc.engine.worker.store", "dfc.jobs.operations")
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # one task per process, one thread per task


def dask_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Make the environment for a process that imports Dask from its parent's environment."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_PREFIX)}
    return kept | {_PREFIX + name: value for name, value in _DASK.items()} | dict.fromkeys(_THREADS, "1")


def security(scheduler: SchedulerAddress) -> Any:
    """Make Dask's `Security` for a scheduler, for all roles. Imports Dask, so call it only in processes that run Dask."""
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
    """Make a scratch directory for this process and its children, also used by `tempfile`. `end_group` removes it; after a
    kill, the next process that calls this does."""
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
    """Whether the process that made it is gone. Called under the lock of `make_scratch`, so a directory without a lock file is
    left from a power loss: nothing here is ever synced."""
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
    """Move standard input and output to descriptors that children do not inherit; 0 reads /dev/null, 1 goes to stderr."""
    pipes = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return pipes


def start_fork_server(scratch: str) -> None:
    """Start the process that workers are forked from, with everything they need imported. Dask finds it running."""
    # Its socket is in the scratch directory, whose path may be longer than the limit for the path of a socket.
    tempfile.tempdir = f"/proc/self/fd/{os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}"
    util.get_temp_dir()
    tempfile.tempdir = scratch
    multiprocessing.get_context("forkserver").set_forkserver_preload(["distributed", "distributed.nanny", *_WORKER_IMPORTS])
    forkserver.ensure_running()


def end_group(scratch: str) -> NoReturn:
    """End this process and everything it started, at once. Nothing in them needs to be saved: the targets drop incomplete
    outputs."""
    with suppress(OSError):
        # No child may write from here on: files written after the removal below would stay behind.
        if os.getpgrp() == os.getpid():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)
    shutil.rmtree(scratch, ignore_errors=True)
    with suppress(Exception):
        # Removes named semaphores: the process that would otherwise remove them ends with the group.
        util._run_finalizers(0)  # type: ignore[attr-defined]
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
