"""Base URLs of load tests. Only loopback addresses are allowed, unless the user says otherwise."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit


class AddressError(ValueError):
    """The URL is not a plain HTTP base URL, or names another machine without permission."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a node. `prefix` is the path before every request path, without a trailing slash."""

    host: str
    port: int
    prefix: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.prefix}"


def parse_base_url(url: str, *, allow_remote: bool) -> Address:
    """Parse `http://HOST[:PORT][/PREFIX]`. AddressError if it is invalid, or remote without permission.

    A host name counts as local only when every address it resolves to is a loopback address.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise AddressError(f"the base URL must be http://HOST[:PORT], not {url!r}")
    if parts.query or parts.fragment or parts.username:
        raise AddressError("the base URL must not have a query, fragment or user name")
    try:
        port = parts.port or 80
    except ValueError as error:
        raise AddressError(f"the base URL must be http://HOST[:PORT], not {url!r}") from error
    if not allow_remote and not is_loopback(parts.hostname):
        raise AddressError(f"{parts.hostname} is not this machine; pass --allow-remote to test it anyway")
    return Address(parts.hostname, port, parts.path.rstrip("/"))


def is_loopback(host: str) -> bool:
    """Whether all addresses of the host are loopback addresses. AddressError if it has none."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise AddressError(f"cannot resolve {host}: {error}") from error
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)
