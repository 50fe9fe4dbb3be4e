"""Turn error answers of nodes back into exceptions, by the `code` in their JSON body.

Clients get the matching class of `dfc.errors` (`error_from_answer`), nodes a `RemoteError` with the same status and code. For a
code that `dfc.errors` does not know, the status decides the class, and the code is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from dfc import errors
from dfc.errors import (
    BadRequest,
    BodyTimeout,
    ChecksumMismatch,
    Conflict,
    DfcError,
    Forbidden,
    MethodNotAllowed,
    Misdirected,
    NoSpace,
    NotFound,
    NotThePrimary,
    ObjectNotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    ServerTrouble,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from dfc.wire import ITEM_HEADER, LOST_HEADER, MAP_HEADER

# Statuses to retry: the node, or a gateway before it, cannot serve now. A 500 is final: it is about the object or its disk.
RETRY_STATUSES: Final = frozenset((408, 429, 502, 503, 504))
# For answers without a body (HEAD) or from something that is not DFC.
_BY_STATUS: Final[Mapping[int, type[DfcError]]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: ObjectNotFound,
    405: MethodNotAllowed,
    408: BodyTimeout,
    409: Conflict,
    410: NotFound,
    412: PreconditionFailed,
    413: TooLarge,
    416: RangeNotSatisfiable,
    421: Misdirected,
    422: ChecksumMismatch,
    507: NoSpace,
}


class Headers(Protocol):
    """Headers of an answer, with names in any case, as in http.client and httpx."""

    def get(self, name: str, /) -> str | None: ...


class ErrorBody(msgspec.Struct):
    """The code and message in the body of an error; empty if the body is not from a DFC node."""

    code: str = ""
    message: str = ""


class _Body(msgspec.Struct):
    error: ErrorBody


# Only classes of `dfc.errors`: which other modules with errors are loaded differs from process to process.
_BY_CODE: Final[Mapping[str, type[DfcError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, DfcError) and "code" in vars(kind)
}


def decode_error_body(body: bytes) -> ErrorBody:
    """Decode the body of an error answer."""
    try:
        return msgspec.json.decode(body, type=_Body).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ErrorBody()


class RemoteError(DfcError):
    """Another node answered with an error; status and code are the ones it sent."""

    def __init__(self, status: int, body: bytes, url: str) -> None:
        said = decode_error_body(body)
        super().__init__(said.message or f"{url} answered with status {status}")
        # A status that HTTP does not have is not passed on.
        self.status = status if 400 <= status <= 599 else 502  # type: ignore[misc]
        self.code = said.code or "bad_gateway"  # type: ignore[misc]


def error_from_answer(status: int, headers: Headers, body: bytes, what: str) -> DfcError:
    """Make the exception for an answer of status 300 or more; `what` (method and URL) is for answers without a message."""
    problem = decode_error_body(body)
    kind = _BY_STATUS.get(status)
    if kind is None or kind.code != problem.code:
        kind = _BY_CODE.get(problem.code, kind)
    if status == NotThePrimary.status and headers.get(MAP_HEADER):
        kind = NotThePrimary  # an answer to HEAD has no body with a code
    if kind is None:
        kind = Unavailable if status in RETRY_STATUSES else ServerTrouble if status >= 500 else BadRequest
    # Some classes build their message from other arguments; here the message is the one the node sent.
    error = kind.__new__(kind)
    DfcError.__init__(error, problem.message or f"{what} was answered with status {status}", headers=_kept(headers))
    if problem.code and problem.code != kind.code:
        error.code = problem.code  # type: ignore[misc]  # unknown here: show it as the node sent it
    return error


def _kept(headers: Headers) -> dict[str, str]:
    names = ("Retry-After", "Content-Range", "Allow", "WWW-Authenticate", "X-Request-Id", ITEM_HEADER, LOST_HEADER, MAP_HEADER)
    return {name: value for name in names if (value := headers.get(name))}


def is_worth_retrying(error: DfcError) -> bool:
    """Whether the same request may succeed a little later."""
    return isinstance(error, Unavailable | Unreachable | BodyTimeout)


def retry_after_s(error: DfcError) -> float | None:
    """Return the node's Retry-After in seconds. Dates are ignored; DFC does not send them."""
    value = error.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None
