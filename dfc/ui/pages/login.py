"""Logging in with the token, and out."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl

from dfc.errors import BadRequest
from dfc.http.access import TokenAccess
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.limits import FORM_BYTES_MAX, FORM_FIELDS_MAX
from dfc.ui.access import LoginTries
from dfc.ui.rendering import Rendering, see_other

FIRST: Final = "/ui"
THEN: Final = frozenset(("then",))


class LoginPage(Handlers):
    """Handlers of the login. `access` knows the sessions."""

    def __init__(self, access: TokenAccess, rendering: Rendering) -> None:
        self._sessions = access.sessions
        self._rendering = rendering
        self._tries = LoginTries()

    async def page(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show the form."""
        then = checked(exchange.query_parameters(THEN).get("then", FIRST))
        return await self._rendering.page(exchange, "login.html", then=then, wrong="")

    async def log_in(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Begin a session. TooManyLogins."""
        exchange.query_parameters(THEN)
        address = exchange.remote or ""
        self._tries.check(address)
        fields = await form_of(exchange)
        self._tries.check(address)  # others may have tried since; from here on nothing is waited for
        then = checked(fields.get("then", FIRST))
        is_encrypted = exchange.headers.get("Origin", "").startswith("https://")
        cookie = self._sessions.begin(fields.get("token", "").strip(), is_encrypted=is_encrypted)
        if cookie is not None:
            self._tries.succeeded(address)
            return see_other(then, cookie)
        self._tries.failed(address)
        return await self._rendering.page(exchange, "login.html", 401, then=then, wrong="This is not the token of the cluster.")

    async def log_out(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Have the browser forget its session."""
        return see_other(FIRST, self._sessions.end())

    ENDPOINTS = (
        Endpoint("/ui/login", {"GET": page, "POST": log_in}, THEN),
        Endpoint("/ui/logout", {"POST": log_out}),
    )


def checked(then: str) -> str:
    """The page to show next, if it is one of ours; else the first one."""
    is_ours = then == FIRST or then.startswith((f"{FIRST}/", f"{FIRST}?"))
    return then if is_ours and then.isascii() and then.isprintable() and "\\" not in then else FIRST


async def form_of(exchange: Exchange) -> dict[str, str]:
    """Return the fields of a form. BadRequest, TooLarge."""
    kind = exchange.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise BadRequest("a form is wanted here, as application/x-www-form-urlencoded")
    body = await exchange.read_small(FORM_BYTES_MAX)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS_MAX)
    except (ValueError, UnicodeError):
        raise BadRequest("the form is not UTF-8, or has too many fields") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise BadRequest("a field of the form is given twice")
    return fields
