"""Addresses: lists of URLs tried by health, and host names that a node answers to.

Wherever the URL of a cluster or of its proxy is expected, several may be given, separated by commas. A request goes to the
address that answered last, and to the next one if it cannot connect. A dead address costs a process at most `CONNECT_LIMIT_S`,
one that hangs `SILENT_S`, once: it moves to the end of the list and is tried again when the others fail, or after a while.
This module sends nothing itself: callers pass the attempt to `reach` or `reach_async`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeVar
from urllib.parse import urlsplit

from dfc.errors import BadRequest, DfcError, Misdirected, NotConnected, Unavailable, Unreachable
from dfc.limits import ADDRESSES_MAX, HOST_CHARS_MAX, HOSTS_REMEMBERED_MAX

T = TypeVar("T")
CONNECT_LIMIT_S: Final = 1.0  # per address while others are left: a connection across the world takes a third of it
SILENT_S: Final = 2.0  # per address while others are left: one that says nothing for so long when it is probed hangs
ANSWERED_S: Final = 2.0  # one that has answered within so long is not probed
FAILED_S: Final = 30.0  # how long an address that failed stays behind the others
REFUSED_S: Final = 10.0  # how long a node asks others first after it could not connect to one; by then that is marked down
_LISTS_REMEMBERED: Final = 64  # all users of the same list in a process share what is known of its addresses


def split_addresses(text: str) -> tuple[str, ...]:
    """Split a comma-separated list into URLs, without trailing slashes or duplicates. BadRequest for none or too many."""
    urls = tuple(dict.fromkeys(url.rstrip("/") for part in text.split(",") if (url := part.strip())))
    if not urls:
        raise BadRequest(f"no cluster address given: {text!r}")
    if len(urls) > ADDRESSES_MAX:
        raise BadRequest(f"too many cluster addresses: {len(urls)}, at most {ADDRESSES_MAX} are allowed")
    return urls


def is_http_url(text: str) -> bool:
    """Whether the text has the form http://HOST:PORT."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:
        return False


def addresses_of(text: str) -> Addresses:
    """Return the shared `Addresses` of a list: the same list gives the same object, so all its users learn from each other.

    BadRequest.
    """
    return _shared(split_addresses(text))


def may_ask_another(error: DfcError, *, repeatable: bool) -> bool:
    """Whether an unanswered request may be sent to another address immediately.

    Yes if it was never sent, or if it is `repeatable`: repeating it changes nothing, not even the answer. Everything else is
    up to the caller's retry policy, since the caller knows what the answer to a second try means; that try begins with another
    address.
    """
    return repeatable or isinstance(error, NotConnected)


class Addresses:
    """The addresses of one cluster and their health. Usable from any thread and after a fork: there are no locks."""

    def __init__(self, urls: tuple[str, ...], now_s: Callable[[], float] = time.monotonic) -> None:
        self.urls = urls
        self._now_s = now_s
        self.last = ""  # the address that answered last; empty if none has
        self._answered_s: dict[str, float] = {}
        self._failed: dict[str, tuple[bool, float]] = {}  # whether failing took long, and when it happened

    def __str__(self) -> str:
        return ",".join(self.urls)

    def in_order(self) -> list[str]:
        """The addresses in the order to try: the last to answer, then unknown ones, then those that failed."""
        return sorted(self.urls, key=self._rank)

    def _rank(self, url: str) -> tuple[int, bool, float]:
        # Among the failed, slow ones come last: the last address has no connect limit, so an address that is merely slow is
        # still reached when all others are dead.
        slow, failed_s = self._failed.get(url, (False, -FAILED_S))
        if url == self.last:
            return 0, slow, failed_s
        if self._now_s() - failed_s < FAILED_S:
            return 2, slow, failed_s
        return 1, False, 0.0

    def answered(self, url: str) -> None:
        """Record that this address answered: it is tried first from now on."""
        self.last = url
        self._answered_s[url] = self._now_s()
        self._failed.pop(url, None)

    def failed(self, url: str, took_s: float) -> None:
        """Record that this address failed: the others are tried first for a while."""
        if len(self.urls) > 1:
            self._failed[url] = (took_s >= CONNECT_LIMIT_S / 2, self._now_s())
            if self.last == url:
                self.last = ""

    def reach(self, attempt: Callable[[str, float | None], T], probe: Callable[[str, float], None], *, repeatable: bool) -> T:
        """Try the addresses in order and return the result of the first that answers.

        The attempt gets the address and the seconds that connecting to it may take (None: the usual limit). Any error but
        `Unreachable` counts as an answer and is raised. If none answers, the error is an `Unreachable` of the kind that the
        attempts raised, and its message lists them all. While others are left, an address that has not answered a moment ago is
        probed first, so that nothing is sent to one that hangs: `probe` gets it with a limit in seconds (NotConnected).
        """
        losses: list[DfcError] = []
        for url, limit_s in self._turns():
            begun_s = self._now_s()
            try:
                if limit_s is not None and begun_s - self._answered_s.get(url, -ANSWERED_S) >= ANSWERED_S:
                    probe(url, SILENT_S)
                found = attempt(url, limit_s)
            except Unreachable as error:
                self.failed(url, self._now_s() - begun_s)
                losses.append(error)
                if not may_ask_another(error, repeatable=repeatable):
                    break
            else:
                self.answered(url)
                return found
        raise _together(losses)

    async def reach_async(self, attempt: Callable[[str, float | None], Awaitable[T]]) -> T:
        """`reach` for nodes, where an address that fails raises `Unavailable`. Only for repeatable requests, or connecting."""
        losses: list[DfcError] = []
        for url, limit_s in self._turns():
            begun_s = self._now_s()
            try:
                found = await attempt(url, limit_s)
            except Unavailable as error:
                self.failed(url, self._now_s() - begun_s)
                losses.append(error)
            else:
                self.answered(url)
                return found
        raise _together(losses)

    def _turns(self) -> Iterator[tuple[str, float | None]]:
        order = self.in_order()
        for number, url in enumerate(order, 1):
            yield url, CONNECT_LIMIT_S if number < len(order) else None


class Refusals:
    """Nodes to which no connection could be made a moment ago, for `keep_s` seconds. Usable from any thread."""

    def __init__(self, keep_s: float = REFUSED_S, now_s: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._now_s = now_s
        self._until_s: dict[str, float] = {}

    def note(self, url: str) -> None:
        """Note that the node at a URL could not be reached."""
        self._until_s[origin_of(url)] = self._now_s() + self._keep_s

    def forget(self, url: str) -> None:
        """Note that it has been reached."""
        if self._until_s:  # normally there are none, and this is called for each new connection
            self._until_s.pop(origin_of(url), None)

    def __contains__(self, url: object) -> bool:
        return bool(self._until_s) and self._until_s.get(origin_of(str(url)), 0.0) > self._now_s()


class Origins:
    """The nodes that some URLs belong to: contains every URL of one of them."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._origins = frozenset(map(origin_of, urls))

    def __contains__(self, url: object) -> bool:
        return origin_of(str(url)) in self._origins


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, which name a node."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()


_shared = lru_cache(_LISTS_REMEMBERED)(Addresses)


def _together(losses: list[DfcError]) -> DfcError:
    """Combine the errors into the most hopeful one, with a message that says what happened at each address."""
    error = max(losses, key=_hope)
    if len(losses) > 1:
        error.message = f"none of the {len(losses)} addresses answered: {'; '.join(loss.message for loss in losses)}"
        error.args = (error.message,)
    return error


def _hope(error: DfcError) -> int:
    """Rank an error: highest for a request that was sent and may have taken effect, lowest for a URL that looks mistyped."""
    return 2 if not isinstance(error, NotConnected) else 1 if type(error) is NotConnected else 0


# --- Host names: parse a `Host` header and decide whether the node answers to it.
#
# If a page at http://evil.example:8080 makes its name resolve to this machine (DNS rebinding), the browser takes it for the
# node's own origin and lets it read, write and delete. Only the name gives it away. Therefore a node answers only to addresses,
# to names that public name servers cannot serve, and to the names in its settings.

ANY_HOST: Final = "*"
# Reserved, never public: RFC 6761, 6762 and 8375, and ICANN's resolution 2024.07.29.06 on `.internal`.
PRIVATE_SUFFIXES: Final = (".localhost", ".local", ".internal", ".home.arpa", ".test")
_LABEL: Final = "[A-Za-z0-9_-]{1,63}"  # Compose allows underscores in service names
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_ZONE: Final = r"(?:%[A-Za-z0-9._~-]{1,32})?"  # also as `%25eth0`, the form of RFC 6874
_AUTHORITY: Final = re.compile(rf"(?:\[([0-9A-Fa-f:.]{{2,45}}){_ZONE}\]|({_NAME.pattern}))(?::[0-9]{{0,5}})?")


def host_name(text: str) -> str | None:
    """Normalise a host name: lower case, without the final dot. None when the text is not a host name."""
    name = text.lower().removesuffix(".")
    return name if len(name) <= HOST_CHARS_MAX and _NAME.fullmatch(text) else None


def host_of(url: str) -> str:
    """Return the host of a URL in ASCII, as clients send it; empty if there is none."""
    try:
        host = urlsplit(url).hostname or ""
        return host if host.isascii() else host.encode("idna").decode()
    except ValueError:
        return ""


class KnownHosts:
    """The set of host names that a node answers to; `ANY_HOST` among `names` allows all."""

    def __init__(self, names: Iterable[str]) -> None:
        known = frozenset(names)
        self._any = ANY_HOST in known
        self._names = {name for text in known if (name := host_name(text)) is not None}
        # Clients use few names, again and again.
        self._admits = lru_cache(HOSTS_REMEMBERED_MAX)(self._judge)

    def check(self, authority: str) -> None:
        """Accept a host with or without a port; BadRequest when it is malformed, Misdirected when the name is unknown."""
        if not self._admits(authority):
            raise Misdirected(
                f"this node does not answer to the name {authority!r}, as a protection against DNS rebinding; "
                f"if the name is yours, add it to the setting allowed_hosts"
            )

    def _judge(self, authority: str) -> bool:
        match = _AUTHORITY.fullmatch(authority)
        if match is not None and match[1] is not None:
            with suppress(ValueError):
                IPv6Address(match[1])
                return True
        elif match is not None and (name := host_name(match[2])) is not None:
            return self._any or self._admits_name(name)
        raise BadRequest("the host of the request is malformed: it must be a name or an address, optionally with a port")

    def _admits_name(self, name: str) -> bool:
        if name in self._names or "." not in name or name.endswith(PRIVATE_SUFFIXES):
            return True
        # Browsers never send other spellings of an address, such as 0x7f.1: they rewrite them as four numbers.
        with suppress(ValueError):
            IPv4Address(name)
            return True
        return False
