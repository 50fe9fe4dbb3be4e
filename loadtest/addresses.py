"""Base URLs: what a load test may be aimed at. Only loopback addresses, unless the user says otherwise."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit


class AddressError(ValueError):
    """A URL that is no plain HTTP base URL, or one that is not this machine and was not allowed."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node listens; `prefix` is the path in front of every request, without a slash at its end."""

    host: str
    port: int
    prefix: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.prefix}"


def parse_base_url(url: str, *, allow_remote: bool) -> Address:
    """The address in `http://HOST[:PORT][/PREFIX]`; AddressError when it is not one, or is remote without leave.

    A host name counts as local only when every address it resolves to is a loopback address.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise AddressError(f"a base URL is http://HOST[:PORT], not {url!r}")
    if parts.query or parts.fragment or parts.username:
        raise AddressError("a base URL has no query, fragment or user name")
    try:
        port = parts.port or 80
    except ValueError as error:
        raise AddressError(f"a base URL is http://HOST[:PORT], not {url!r}") from error
    if not allow_remote and not is_loopback(parts.hostname):
        raise AddressError(f"{parts.hostname} is not this machine; --allow-remote lets a load test leave it")
    return Address(parts.hostname, port, parts.path.rstrip("/"))


def is_loopback(host: str) -> bool:
    """Whether all addresses of the host are loopback addresses; AddressError when it has none."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise AddressError(f"{host} has no address: {error}") from error
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
