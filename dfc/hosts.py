"""Host names: parse a `Host` header and decide whether the node answers to it.

If a page at http://evil.example:8080 makes its name resolve to this machine (DNS rebinding), the browser takes it for the
node's own origin and lets it read, write and delete. Only the name gives it away. Therefore a node answers only to addresses,
to names that public name servers cannot serve, and to the names in its settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import urlsplit

from dfc.errors import BadRequest, Misdirected
from dfc.limits import HOST_CHARS_MAX, HOSTS_REMEMBERED_MAX

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
