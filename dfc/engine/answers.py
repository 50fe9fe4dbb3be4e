"""Encodes a worker's answer: a result, or an error as code, message and whether to retry. Never a pickled object."""

from __future__ import annotations

from typing import Final

import msgspec

from dfc.engine.base import EngineLost, TaskFailed
from dfc.engine.wire import FRAME_BYTES_MAX
from dfc.errors import BodyTimeout, ChecksumMismatch, Conflict, DfcError, StorageFailed, Unavailable, Unreachable
from dfc.jobs.tasks import TaskResult
from dfc.tar.header import TarError

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
