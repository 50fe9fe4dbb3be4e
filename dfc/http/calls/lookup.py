"""Looking a host up within a time limit: what connects in a thread has no other way to bound it."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time

_EACH_MIN_S = 0.05  # for an address of a host that has very many: enough within a data centre


def connect_share_s(host: str, port: int, limit_s: float) -> float:
    """Seconds for each IP address of a host, so that looking it up and trying them all takes at most `limit_s`.

    TimeoutError when looking it up alone takes longer, OSError when there is no such host.
    """
    if _is_literal(host):
        return limit_s
    begun_s = time.monotonic()
    count = len(_look_up(host, port, limit_s))
    return max((limit_s - (time.monotonic() - begun_s)) / max(count, 1), _EACH_MIN_S)


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

    # A resolver that hangs cannot be called back. The thread ends when it gives up, and does not hold up the end of a process.
    thread = threading.Thread(target=work, name="lookup", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise TimeoutError(f"looking up {host} took longer than {limit_s:g} s")
    if problem is not None:
        raise problem
    return found
