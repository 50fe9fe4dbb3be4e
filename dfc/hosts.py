"""Host names: the form of a `Host`, and which of them a node answers to.

A page of http://evil.example:8080 whose name is made to resolve to this machine (DNS rebinding) is of the node's own origin
as far as its browser knows, and may read, write and delete. Its name gives it away. A node therefore answers to addresses, to
names that no stranger's name server is asked for, and to those that its settings name.
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
# Kept out of the public name system for good: RFC 6761, 6762 and 8375, and ICANN's resolution 2024.07.29.06 on `.internal`.
PRIVATE_SUFFIXES: Final = (".localhost", ".local", ".internal", ".home.arpa", ".test")
_LABEL: Final = "[A-Za-z0-9_-]{1,63}"  # Compose lets names of services have underscores
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_ZONE: Final = r"(?:%[A-Za-z0-9._~-]{1,32})?"  # also as `%25eth0`, the form of RFC 6874
_AUTHORITY: Final = re.compile(rf"(?:\[([0-9A-Fa-f:.]{{2,45}}){_ZONE}\]|({_NAME.pattern}))(?::[0-9]{{0,5}})?")


def host_name(text: str) -> str | None:
    """A name as names are compared: lower case, without the dot of the root at its end. None for what is no name."""
    name = text.lower().removesuffix(".")
    return name if len(name) <= HOST_CHARS_MAX and _NAME.fullmatch(text) else None


def host_of(url: str) -> str:
    """The host of a URL, in ASCII, as clients send it. Empty where there is none."""
    try:
        host = urlsplit(url).hostname or ""
        return host if host.isascii() else host.encode("idna").decode()
    except ValueError:
        return ""


class KnownHosts:
    """The hosts that a node answers to. `names` are its own; `ANY_HOST` among them admits all."""

    def __init__(self, names: Iterable[str]) -> None:
        known = frozenset(names)
        self._any = ANY_HOST in known
        self._names = {name for text in known if (name := host_name(text)) is not None}
        # Clients use few names, again and again.
        self._admits = lru_cache(HOSTS_REMEMBERED_MAX)(self._judge)

    def check(self, authority: str) -> None:
        """Pass a host with or without a port; BadRequest for what is neither name nor address, Misdirected for a stranger."""
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
        # Other spellings of an address, such as 0x7f.1, are sent by no browser: it writes them as four numbers.
        with suppress(ValueError):
            IPv4Address(name)
            return True
        return False
