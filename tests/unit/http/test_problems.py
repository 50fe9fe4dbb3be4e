"""Errors of other nodes, told from their answers: the same class in every process."""

from __future__ import annotations

import pytest

from dfc.errors import BadRequest, Conflict, NotFound, ObjectNotFound, ServerTrouble, Unavailable
from dfc.formats.base import FormatError
from dfc.http.retry import RemoteError, error_from_answer
from dfc.jobs.data.fields import BadField


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
