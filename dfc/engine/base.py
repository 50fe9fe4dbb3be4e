"""Engines: their interface, what a worker answers, and its settings.

Bytes of a task go in; bytes of its result come out, or one of two errors. An engine forgets a task once it has answered;
retries, order and the journal are up to the jobs service.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

import msgspec

from dfc.config import Settings
from dfc.engine.environment import FRAME_BYTES_MAX
from dfc.errors import BodyTimeout, ChecksumMismatch, Conflict, DfcError, ServerTrouble, StorageFailed, Unavailable, Unreachable
from dfc.jobs.tasks import TaskResult
from dfc.tar.header import TarError


class EngineLost(ServerTrouble):
    """The worker died, or the engine could not be reached. The state of the task is unknown: run it again."""

    status = 503
    code = "engine_lost"


class TaskFailed(DfcError):
    """The task ran and failed. `code` is the error's (`input_changed`, `no_space`, …); `retryable` says whether a retry may
    succeed, for example because a target was restarted."""

    def __init__(self, code: str, message: str, retryable: bool) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]
        self.retryable = retryable


class Engine(Protocol):
    """Runs tasks. Belongs to one event loop. Processes are started only for the first task."""

    @property
    def slots(self) -> int:
        """How many tasks can run at once, as far as is known so far; at least 1."""

    async def start(self) -> None:
        """Check the settings, without starting anything. ConfigError if they cannot work."""

    async def run(self, task: bytes, near: str | None) -> bytes:
        """Run one task (msgpack of `Task`), beside the target `near` if it has a free worker, else anywhere.

        Returns msgpack of `TaskResult`. Raises EngineLost, TaskFailed. Cancelling the coroutine withdraws the task; one that is
        already running ends at its next call of the store.
        """

    async def close(self) -> None:
        """End all processes. Tasks that are running raise EngineLost."""


# --- Encodes a worker's answer: a result, or an error as code, message and whether to retry. Never a pickled object.

ERROR_CHARS_MAX: Final = 2000
ANSWER_BYTES_MAX: Final = FRAME_BYTES_MAX - 1024
# Errors that may go away on a retry (node restarts, connections, disks), unlike errors in the data or the spec.
_RETRYABLE: Final = (OSError, MemoryError, Unavailable, Unreachable, BodyTimeout, ChecksumMismatch, StorageFailed, EngineLost)


class ResultTooLarge(Conflict):
    """The result of a task does not fit into an answer."""

    code = "result_too_large"

    def __init__(self, size: int) -> None:
        super().__init__(f"the result of a task has {size} bytes, more than {ANSWER_BYTES_MAX}: it has too many outputs")


class _Done(msgspec.Struct, frozen=True, tag="done"):
    result: bytes


class _Failed(msgspec.Struct, frozen=True, tag="failed"):
    code: str
    message: str
    retryable: bool


_DECODER: Final[msgspec.msgpack.Decoder[_Done | _Failed]] = msgspec.msgpack.Decoder(_Done | _Failed)


def encode_result(result: TaskResult) -> bytes:
    """Encode a result; if it is too large for the engine, encode the error ResultTooLarge instead."""
    answer = msgspec.msgpack.encode(_Done(msgspec.msgpack.encode(result)))
    return answer if len(answer) <= ANSWER_BYTES_MAX else encode_error(ResultTooLarge(len(answer)))


def encode_error(error: Exception) -> bytes:
    """Encode an error. A DfcError keeps its code; others become `bad_archive`, `io_error` or, for bugs, `internal_error`."""
    if isinstance(error, DfcError):
        code, message = error.code, error.message
    elif isinstance(error, TarError):
        code, message = "bad_archive", str(error)
    elif isinstance(error, OSError):
        code, message = "io_error", str(error)
    else:
        code, message = "internal_error", f"{type(error).__name__}: {error}{_where(error)}"
    return msgspec.msgpack.encode(_Failed(code, message[:ERROR_CHARS_MAX], isinstance(error, _RETRYABLE)))


def decode_answer(answer: bytes) -> bytes:
    """Return the result as msgpack of TaskResult. Raises TaskFailed, or EngineLost if the answer is invalid."""
    try:
        found = _DECODER.decode(answer)
    except msgspec.MsgspecError as error:
        raise EngineLost(f"a worker sent an invalid answer: {error}") from None
    if isinstance(found, _Failed):
        raise TaskFailed(found.code, found.message, found.retryable)
    return found.result


def _where(error: BaseException) -> str:
    """File and line of an error, so that a bug report says where to look."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({trace.tb_frame.f_code.co_filename.rpartition('/dfc/')[2]}:{trace.tb_lineno})"


# --- The settings of a worker, sent with every task: how to reach the cluster, and how much of the machine to use.


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
