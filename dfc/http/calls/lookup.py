"""What blocking connections cannot do themselves: look up a host within a time limit, and tell a node that hangs."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from contextlib import closing
from typing import Final
from urllib.parse import urlsplit

from dfc.errors import NotConnected

_ASKED: Final = "/v1/health"  # nodes answer it without waiting for anything
_EACH_MIN_S = 0.05  # for an address of a host that has very many: enough within a data centre


def connect_share_s(host: str, port: int, limit_s: float) -> float:
    """Return a connect timeout per IP address of a host, so that the lookup and trying them all take at most `limit_s`.

    TimeoutError when the lookup alone takes longer, OSError when the host does not exist.
    """
    if _is_literal(host):
        return limit_s
    begun_s = time.monotonic()
    count = len(_look_up(host, port, limit_s))
    return max((limit_s - (time.monotonic() - begun_s)) / max(count, 1), _EACH_MIN_S)


def check_answers(base: str, limit_s: float) -> None:
    """Ask the node at a URL for anything. NotConnected if it says nothing: a node that hangs is connected to all the same."""
    # Imported only now: most commands have one address, and ask nobody beforehand.
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = urlsplit(base)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    try:
        host, port = parts.hostname or "", parts.port
        with closing(kind(host, port, timeout=connect_share_s(host, port or 0, limit_s))) as connection:
            connection.connect()
            connection.sock.settimeout(limit_s)
            connection.request("HEAD", _ASKED)
            connection.getresponse()
    except HTTPException:
        pass  # not what was expected, but an answer
    except TimeoutError:
        raise NotConnected(f"{base}: connected, but without an answer within {limit_s:g} s") from None
    except OSError as problem:
        raise NotConnected(f"{base}: cannot connect: {problem}") from None


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(host: str, port: int, limit_s: float) -> list[object]:
    found: list[object] = []
    problem: OSError | None = None

    def work() -> None:
        nonlocal problem
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            problem = error
        except UnicodeError as error:  # a name that cannot be one
            problem = OSError(str(error))

    # A hanging resolver cannot be interrupted. The thread ends when the resolver gives up, and does not delay process exit.
    thread = threading.Thread(target=work, name="lookup", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise TimeoutError(f"looking up {host} took longer than {limit_s:g} s")
    if problem is not None:
        raise problem
    return found
