"""Errors of other nodes, told from their answers; trying again in a thread: what is worth it, how often, and who may end it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from dfc.errors import BadRequest, Conflict, DfcError, NotFound, ObjectNotFound, ServerTrouble, Unavailable, Unreachable
from dfc.formats.base import FormatError
from dfc.http.retry import Cancellation, Cancelled, RemoteError, Retries, RetryPolicy, error_from_answer, retried
from dfc.jobs.data.fields import BadField

POLICY = RetryPolicy(retries=3)


def failing(*problems: DfcError) -> Callable[[], str]:
    left = list(problems)

    def attempt() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return attempt


def test_what_may_pass_is_tried_again_and_longer_waits_follow() -> None:
    waits: list[float] = []
    assert retried(failing(Unreachable("a"), Unreachable("b"), Unreachable("c")), POLICY, waits.append) == "done"
    assert len(waits) == 3
    assert all(0.125 * 2**number <= wait <= 0.25 * 2**number for number, wait in enumerate(waits))


def test_the_last_error_is_raised() -> None:
    problems = [Unavailable(str(number)) for number in range(4)]
    waits: list[float] = []
    with pytest.raises(Unavailable) as caught:
        retried(failing(*problems), POLICY, waits.append)
    assert caught.value is problems[3]
    assert len(waits) == 3


def test_what_is_final_is_raised_at_once() -> None:
    with pytest.raises(BadRequest):
        retried(failing(BadRequest("x")), POLICY, lambda _: pytest.fail("waited"))
    with pytest.raises(Unavailable):
        retried(failing(Unavailable("x")), POLICY, lambda _: pytest.fail("waited"), lambda _: False)


def test_an_error_is_judged_only_while_there_are_tries_left() -> None:
    judged: list[DfcError] = []
    with pytest.raises(Unavailable):
        retried(failing(Unavailable("a")), RetryPolicy(retries=0), lambda _: None, lambda error: not judged.append(error))
    assert judged == []


def test_the_node_may_ask_for_a_longer_wait() -> None:
    problem = Unreachable("later")
    problem.headers["Retry-After"] = "7"
    assert Retries(POLICY).delay_s(problem) == 7


def test_useful_tries_do_not_count() -> None:
    retries = Retries(POLICY)
    for number in range(20):
        retries.delay_s(Unreachable("x"), useful=number % 3 == 0)
    assert retries.number == 2
    retries.delay_s(Unreachable("x"))
    assert retries.delay_s(Unreachable("x")) is None


def test_who_has_given_up_gets_that_in_the_place_of_the_error() -> None:
    cancellation = Cancellation()

    def attempt() -> None:
        cancellation.cancel()
        raise BadRequest("because its connection was shut down")

    with pytest.raises(Cancelled):
        retried(attempt, POLICY, cancellation.wait, check=cancellation.check)
    with pytest.raises(Cancelled):
        retried(lambda: pytest.fail("tried"), POLICY, cancellation.wait, check=cancellation.check)


class Held:
    """What an attempt has open."""


@pytest.mark.parametrize("problem", [Unreachable, BadRequest])
def test_an_error_that_is_done_with_holds_nothing_that_the_attempt_had(problem: type[DfcError]) -> None:
    held: list[weakref.ref[Held]] = []

    def attempt() -> None:
        mine = Held()
        held.append(weakref.ref(mine))
        raise problem("x")

    gc.disable()
    try:
        with pytest.raises(problem) as caught:
            retried(attempt, POLICY, lambda _: None)
        del caught
        assert [ref() for ref in held] == [None] * len(held)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, BadField.code, Conflict),  # though its class is loaded here
        (409, FormatError.code, Conflict),
        (400, "not_known_anywhere", BadRequest),
        (404, "object_not_found", ObjectNotFound),
        (410, "gone", NotFound),
        (503, "engine_lost", Unavailable),
        (500, "job_failed", ServerTrouble),
    ],
)
def test_a_class_depends_on_the_answer_alone_and_the_code_is_kept(status, code, kind):
    body = b'{"error": {"code": "%b", "message": "it says so"}}' % code.encode()
    error = error_from_answer(status, {}, body, "GET /x")
    assert type(error) is kind
    assert (error.code, error.message) == (code, "it says so")


def test_a_code_is_of_one_answer_only():
    error_from_answer(409, {}, b'{"error": {"code": "bad_field", "message": "m"}}', "GET /x")
    assert Conflict.code == "conflict"


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b'{"error": {"code": "no_space", "message": "full", "request_id": "x"}}', "no_space", "full"),
        (b'{"error": {"code": "no_space"}}', "no_space", "http://t answered with status 507"),
        (b"", "bad_gateway", "http://t answered with status 507"),
        (b"<html>", "bad_gateway", "http://t answered with status 507"),
        (b'{"error": "text"}', "bad_gateway", "http://t answered with status 507"),
        (b'[{"error": {}}]', "bad_gateway", "http://t answered with status 507"),
        (b'{"error": {"code": 3, "message": []}}', "bad_gateway", "http://t answered with status 507"),
        (b'{"error": {"code": "\xff"}}', "bad_gateway", "http://t answered with status 507"),
        (b'{"error":' + b"[" * 100_000, "bad_gateway", "http://t answered with status 507"),
    ],
)
def test_what_nodes_make_of_an_answer(body, code, message):
    error = RemoteError(507, body, "http://t")
    assert (error.status, error.code, error.message) == (507, code, message)
    assert RemoteError.code != code
