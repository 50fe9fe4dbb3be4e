"""What a worker says about a task crosses as bytes and comes back as a result or as TaskFailed."""

from __future__ import annotations

import msgspec
import pytest

from dfc.engine.base import EngineLost, TaskFailed, decode_answer, encode_error, encode_result
from dfc.engine.environment import FRAME_BYTES_MAX, Done, frame
from dfc.errors import BadRequest, JobCancelled, NoSpace, ObjectCorrupt, StorageFailed, Unavailable, Unreachable
from dfc.formats.base import SplitSample
from dfc.jobs.store import InputChanged
from dfc.jobs.tasks import TaskResult
from dfc.tar.header import TarError


def test_results_come_back():
    result = TaskResult(samples=3, bytes_in=4, bytes_out=5, warnings=("w",), data=b"\0\xff")
    assert msgspec.msgpack.decode(decode_answer(encode_result(result)), type=TaskResult) == result


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (InputChanged("x"), "input_changed", False),
        (SplitSample("x"), "split_sample", False),
        (BadRequest("x"), "bad_request", False),
        (JobCancelled("x"), "job_cancelled", False),
        (TarError("x", 512), "bad_archive", False),
        (NoSpace("x"), "no_space", False),
        (ObjectCorrupt("x"), "object_corrupt", False),
        (StorageFailed("x"), "storage_failed", True),
        (Unavailable("x"), "unavailable", True),
        (Unreachable("x"), "unreachable", True),
        (ConnectionResetError("x"), "io_error", True),
        (TimeoutError("x"), "io_error", True),
        (MemoryError("x"), "internal_error", True),
        (KeyError("x"), "internal_error", False),
    ],
)
def test_errors_keep_their_code_and_say_whether_to_try_again(error, code, retryable):
    with pytest.raises(TaskFailed) as caught:
        decode_answer(encode_error(error))
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert "x" in caught.value.message


def test_a_mistake_of_ours_says_where():
    try:
        {}["gone"]
    except KeyError as error:
        answer = encode_error(error)
    with pytest.raises(TaskFailed, match=r"KeyError: 'gone' \(.*test_answers\.py:\d+\)"):
        decode_answer(answer)


def test_long_messages_are_cut():
    with pytest.raises(TaskFailed) as caught:
        decode_answer(encode_error(BadRequest("x" * 10_000)))
    assert len(caught.value.message) == 2000


@pytest.mark.parametrize("answer", [b"", b"\x80\x04K\x01.", msgspec.msgpack.encode({"type": "other"})])
def test_what_is_no_answer_is_never_taken_for_one(answer):
    with pytest.raises(EngineLost):
        decode_answer(answer)


def test_a_result_that_the_engine_cannot_carry_is_an_error():
    with pytest.raises(TaskFailed) as caught:
        decode_answer(encode_result(TaskResult(data=bytes(FRAME_BYTES_MAX))))
    assert (caught.value.code, caught.value.retryable) == ("result_too_large", False)
    largest = encode_result(TaskResult(data=bytes(FRAME_BYTES_MAX - 4096)))
    assert len(frame(Done(1 << 62, largest))) <= FRAME_BYTES_MAX + 4
