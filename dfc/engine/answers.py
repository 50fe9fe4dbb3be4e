"""How a worker answers: the result, or the error as code, text and whether it is worth another try. Never a pickled object."""

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
# What a second try may mend: nodes that restart, connections, disks; not what is wrong with the data or the spec.
_RETRYABLE: Final = (OSError, MemoryError, Unavailable, Unreachable, BodyTimeout, ChecksumMismatch, StorageFailed, EngineLost)


class ResultTooLarge(Conflict):
    """What a task has to say does not fit into an answer."""

    code = "result_too_large"

    def __init__(self, size: int) -> None:
        super().__init__(f"the result of a task has {size} bytes, and the engine carries {ANSWER_BYTES_MAX}: too many outputs")


class _Done(msgspec.Struct, frozen=True, tag="done"):
    result: bytes


class _Failed(msgspec.Struct, frozen=True, tag="failed"):
    code: str
    message: str
    retryable: bool


_DECODER: Final[msgspec.msgpack.Decoder[_Done | _Failed]] = msgspec.msgpack.Decoder(_Done | _Failed)


def encode_result(result: TaskResult) -> bytes:
    """The answer; an error instead when it is larger than the engine carries."""
    answer = msgspec.msgpack.encode(_Done(msgspec.msgpack.encode(result)))
    return answer if len(answer) <= ANSWER_BYTES_MAX else encode_error(ResultTooLarge(len(answer)))


def encode_error(error: Exception) -> bytes:
    """A DfcError keeps its code; anything else is `bad_archive`, `io_error` or, for a mistake of ours, `internal_error`."""
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
    """The result as msgpack of TaskResult. Raises TaskFailed; EngineLost for what no worker of ours can have said."""
    try:
        found = _DECODER.decode(answer)
    except msgspec.MsgspecError as error:
        raise EngineLost(f"a worker answered with something else than a result: {error}") from None
    if isinstance(found, _Failed):
        raise TaskFailed(found.code, found.message, found.retryable)
    return found.result


def _where(error: BaseException) -> str:
    """File and line, so that a report of a user says where to look."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" ({trace.tb_frame.f_code.co_filename.rpartition('/dfc/')[2]}:{trace.tb_lineno})"
