"""Pages: templates, static files, who may see them, and the login."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cached_property
from html import escape
from importlib.resources import files
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

from dfc import __version__
from dfc.errors import BadRequest, DfcError, NotFound, TooManyLogins, Unauthorized
from dfc.http.answers import Answer, header_lines
from dfc.http.exchange import Exchange
from dfc.http.faces import SAFE_METHODS, Endpoint, Handlers, Route, TokenAccess, check_origin
from dfc.limits import FORM_BYTES_MAX, FORM_FIELDS_MAX, LOGIN_ADDRESSES_MAX, format_size
from dfc.ui import words
from dfc.ui.snippets import asked_url, command_line

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

# --- The files of the pages: style, scripts, icon. They never change while a node runs, so browsers keep them.

TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
KEPT: Final = "public, max-age=31536000, immutable"
KEPT_A_DAY: Final = "public, max-age=86400"


class PageFile(NamedTuple):
    """A file, as it is and compressed."""

    content: bytes
    compressed: bytes
    type: str


class PageFiles:
    """All files in `static`, read when the first one is asked for; by URLs that change with any of them."""

    @cached_property
    def _found(self) -> Mapping[str, PageFile]:
        found = {}
        for path in files("dfc.ui").joinpath("static").iterdir():
            kind = TYPES.get(path.name.rpartition(".")[2])
            if kind is not None:
                content = path.read_bytes()
                found[path.name] = PageFile(content, gzip.compress(content, 9, mtime=0), kind)
        return found

    @cached_property
    def version(self) -> str:
        """What the URLs of files begin with."""
        whole = hashlib.sha256()
        for name, file in sorted(self._found.items()):
            whole.update(name.encode() + b"\0" + file.content)
        return whole.hexdigest()[:12]

    def url(self, name: str) -> str:
        """Return the path of a file. KeyError."""
        assert self._found[name]
        return f"/ui/static/{self.version}/{name}"

    def icon(self, exchange: Exchange) -> Answer:
        """Answer with the icon, at an address that stays the same."""
        answer = self.answer(exchange, self.version, "icon.svg")
        answer.headers = answer.headers.replace(KEPT, KEPT_A_DAY)
        return answer

    def answer(self, exchange: Exchange, version: str, name: str) -> Answer:
        """Answer with a file. NotFound, also for files of another version: a page and its script belong together."""
        file = self._found.get(name)
        if file is None or version != self.version:
            raise NotFound("no such file of the pages, or one of another version of DFC: load the page again")
        headers = [("Content-Type", file.type), ("Cache-Control", KEPT), ("X-Content-Type-Options", "nosniff"), VARY]
        if takes_gzip(exchange):
            return Answer(200, file.compressed, [*headers, ("Content-Encoding", "gzip")])
        return Answer(200, file.content, headers)


VARY: Final = ("Vary", "Accept-Encoding")


def takes_gzip(exchange: Exchange) -> bool:
    """Whether the client says that it takes gzip."""
    given = exchange.headers.get("Accept-Encoding", "").lower().replace(" ", "")
    return any(each.partition(";")[0] == "gzip" and not each.endswith((";q=0", ";q=0.0")) for each in given.split(","))


# --- Who may use the pages: like the API, besides the login itself; and how often a login may be tried.

FREE_TRIES: Final = 5
WAIT_S: Final = 1.0  # after the first try that is not free; twice as long after each further one
WAIT_S_MAX: Final = 60.0
FORGET_S: Final = 900.0
OPEN: Final = ("/ui/login", "/favicon.ico")
STATIC: Final = "/ui/static/"


class PageAccess:
    """Decides who may use which route of the pages. `access` is that of the API."""

    def __init__(self, access: TokenAccess) -> None:
        self._access = access

    def check(self, exchange: Exchange, route: Route, authority: str | None) -> None:
        """Check a request (see `dfc.http.faces.Authenticate`). Unauthorized, Forbidden."""
        if route.pattern in OPEN or route.pattern.startswith(STATIC):
            if exchange.method not in SAFE_METHODS:
                check_origin(exchange, authority)
            return
        self._access.check(exchange, route, authority)

    def may_change(self, exchange: Exchange) -> bool:
        """Whether whoever sent this may change things."""
        return not self.wants_login or exchange.in_session or self._access.has_token(exchange)

    @property
    def reads_want_token(self) -> bool:
        """Whether the settings want the token for reads, too."""
        return self._access.reads_want_token

    @property
    def wants_login(self) -> bool:
        """Whether the settings have a token, so that changes want a login."""
        return self._access.sessions.exist


class LoginTries:
    """Failed logins by address: after the free ones each has to wait for longer. `clock_s` is replaced by tests."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._failed: OrderedDict[str, tuple[int, float]] = OrderedDict()  # how many, and when the last one was

    def check(self, address: str) -> None:
        """Check whether this address may try now. TooManyLogins with `Retry-After`."""
        count, last_s = self._failed.get(_neighbours(address), (0, 0.0))
        if count < FREE_TRIES or self._clock_s() - last_s > FORGET_S:
            return
        left_s = last_s + min(WAIT_S_MAX, WAIT_S * 2.0 ** min(count - FREE_TRIES, 10)) - self._clock_s()
        if left_s > 0:
            raise TooManyLogins(f"too many logins have failed: try again in {left_s:.0f} s", retry_after_s=int(left_s) + 1)

    def succeeded(self, address: str) -> None:
        """Forget what failed before."""
        self._failed.pop(_neighbours(address), None)

    def failed(self, address: str) -> None:
        """Note a failed login."""
        now_s, key = self._clock_s(), _neighbours(address)
        count, last_s = self._failed.pop(key, (0, 0.0))
        before = count if now_s - last_s <= FORGET_S else 0
        while self._failed and (
            len(self._failed) >= LOGIN_ADDRESSES_MAX or now_s - next(iter(self._failed.values()))[1] > FORGET_S
        ):
            self._failed.popitem(last=False)
        self._failed[key] = before + 1, now_s


def _neighbours(address: str) -> str:
    """The addresses that count as one: whoever has an IPv6 address has 2**64 of them."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found) if found.version == 4 else found.exploded[:19]


# --- Rendering pages from templates. Everything that a template prints is escaped, and an unknown name in one is an error.

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
    return f"{LOGIN}?{urlencode({'then': then})}" if then.startswith("/ui") else LOGIN


# --- Logging in with the token, and out.

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
