"""Looking hosts up in a limited time."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from dfc.http.blocking import connect_share_s


def test_numbers_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up"))
    assert connect_share_s("127.0.0.1", 80, 1.0) == connect_share_s("::1", 80, 1.0) == 1.0


def test_a_host_of_many_addresses_takes_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{number}", 80)) for number in range(4)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert 0.2 < connect_share_s("host", 80, 1.0) <= 0.25


def test_a_resolver_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def hang(*_: Any, **__: Any) -> list[Any]:
        over.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    begun_s = time.monotonic()
    try:
        with pytest.raises(TimeoutError, match=r"host took longer than 0\.1 s"):
            connect_share_s("host", 80, 0.1)
        assert time.monotonic() - begun_s < 10
    finally:
        over.set()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 80 + ".invalid"])
def test_a_host_that_is_not_there(host: str) -> None:
    with pytest.raises(OSError):
        connect_share_s(host, 80, 10.0)
