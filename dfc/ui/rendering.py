"""Rendering pages from templates. Everything that a template prints is escaped, and an unknown name in one is an error."""

from __future__ import annotations

import asyncio
import gzip
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Final

from dfc import __version__
from dfc.errors import DfcError, Unauthorized
from dfc.http.answers import Answer, header_lines
from dfc.http.exchange import Exchange
from dfc.ui import words
from dfc.ui.access import STATIC, PageAccess
from dfc.ui.files import VARY, PageFiles, takes_gzip
from dfc.ui.snippets import asked_url, command_line
from dfc.units import format_size

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

POLICY: Final = (
    "default-src 'none'; script-src {scripts}; style-src 'self'; img-src 'self' blob:; media-src 'self'; connect-src 'self'; "
    "worker-src {workers}; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = (
    ("Content-Type", "text/html; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
    VARY,
)
COMPRESSED_FROM_BYTES: Final = 1024
THREADS: Final = 2
LOGIN: Final = "/ui/login"
_ASKED_URL: ContextVar[str] = ContextVar("asked_url")
"""The URL of this node, as whoever asked for a page has it: macros that are imported know no values of pages."""


class Rendering:
    """The templates of the pages, loaded when the first one is rendered."""

    def __init__(self, access: PageAccess, files: PageFiles) -> None:
        self._access = access
        self._files = files
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pages")

    @cached_property
    def _environment(self) -> Environment:
        # Imported only now: most proxies never render a page.
        from jinja2 import Environment, PackageLoader, StrictUndefined

        environment = Environment(
            loader=PackageLoader("dfc.ui"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=words.finalize,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {"as_size": format_size, "as_count": words.count, "exact": exact, "command": self._command}
        environment.globals["percent"] = words.percent
        environment.globals["file"] = self._files.url
        environment.globals["version"] = __version__
        return environment

    @property
    def reads_want_token(self) -> bool:
        """Whether programs that read need the token."""
        return self._access.reads_want_token

    async def page(self, exchange: Exchange, template: str, status: int = 200, **values: Any) -> Answer:
        """Render a page. `values` are what its template uses."""
        # In threads of their own: templates are read from disk at first, a page may show thousands of disks, and no request for
        # pages is to keep others waiting.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._rendered, exchange, template, status, values)

    def close(self) -> None:
        """Render no more; what is being rendered is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _command(self, line: str) -> str:
        """A line for a shell, for whom the page is for. It is plain text again, whatever of it macros have escaped."""
        from markupsafe import Markup

        line = line.unescape() if isinstance(line, Markup) else line
        wants = {"writes_want_token": self._access.wants_login, "reads_want_token": self._access.reads_want_token}
        return command_line(line, _ASKED_URL.get(), **wants)

    def _rendered(self, exchange: Exchange, template: str, status: int, values: dict[str, Any]) -> Answer:
        _ASKED_URL.set(asked_url(exchange))
        nonce = secrets.token_urlsafe(16)
        text = self._environment.get_template(template).render(
            here=exchange.target_path,
            nonce=nonce,
            may_change=self._access.may_change(exchange),
            wants_login=self._access.wants_login,
            in_session=self._access.wants_login and self._access.may_change(exchange),
            **values,
        )
        content, headers = text.encode("utf-8", "surrogatepass"), [*HEADERS, policy(f"'nonce-{nonce}'", exchange.authority)]
        if len(content) >= COMPRESSED_FROM_BYTES and takes_gzip(exchange):
            return Answer(status, gzip.compress(content, 1), [*headers, ("Content-Encoding", "gzip")])
        return Answer(status, content, headers)

    def error(self, error: DfcError, exchange: Exchange) -> Answer:
        """Render an error as a page; who has to log in first is sent there."""
        if isinstance(error, Unauthorized) and exchange.method in ("GET", "HEAD"):
            return see_other(login_url(exchange.raw_target))
        if "_environment" not in self.__dict__:  # nothing may be loaded here, where others wait
            text = f"<!doctype html><title>DFC</title><h1>{error.status} {error.code}</h1><p>{escape(error.message)}</p>"
            headers = [*HEADERS, policy("'none'", None), *error.headers.items()]
            return Answer(error.status, text.encode("utf-8", "replace"), headers)
        values = {"error": error, "request_id": exchange.request_id}
        answer = self._rendered(exchange, "error.html", error.status, values)
        answer.headers += header_lines(list(error.headers.items()))
        return answer


def policy(scripts: str, authority: str | None) -> tuple[str, str]:
    """Return the header by which a browser runs scripts of these sources only, and workers only from the files of the pages: no
    stored object is either. Addresses of IPv6 cannot stand in it."""
    in_name = authority is not None and not authority.startswith("[")
    workers = f"{authority}{STATIC}" if in_name else "'self'"
    return "Content-Security-Policy", POLICY.format(scripts=scripts, workers=workers)


def exact(text: str) -> Markup:
    """Escape a text that comes back from the browser or is compared by a script: nothing in it is made visible."""
    from markupsafe import Markup
    from markupsafe import escape as escaped

    return Markup(escaped(str(text)))


def see_other(path: str, *cookies: str) -> Answer:
    """Answer that the browser should look at another page now."""
    return Answer(303, b"", [("Location", path), ("Cache-Control", "no-store"), *(("Set-Cookie", each) for each in cookies)])


def login_url(then: str) -> str:
    """Return the path of the login, after which this page is shown."""
    from urllib.parse import urlencode

    return f"{LOGIN}?{urlencode({'then': then})}" if then.startswith("/ui") else LOGIN
