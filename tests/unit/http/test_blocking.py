"""Bodies of answers as the bulk channel receives them, what is left of a connection, and hosts looked up in a limited time."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from odd_server import Asked, Goodbye, Hangup, OddServer, head, ranged

from dfc.errors import NotConnected
from dfc.http.blocking import Broken, Transport, WrongAddress, connect_share_s
from dfc.http.retry import Cancellation, Cancelled
from dfc.limits import KIB, MIB

BODY = os.urandom(2 * MIB + 333)


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = Transport(Cancellation(), read_timeout_s=20)
    yield made
    made.close()


def whole(asked: Asked) -> Iterator[bytes]:
    yield ranged(BODY, asked) + BODY[asked.start :]


@pytest.mark.parametrize("step", [1000, 8192, 8193, 20_000, 100_000, 4 * MIB])
def test_buffers_are_filled_and_connections_kept(transport: Transport, step: int) -> None:
    """Also what came with the head, and lay in its buffer, comes first."""
    with OddServer(whole) as server:
        for _ in range(3):
            with transport.request("GET", server.url + "/x", {}) as answer:
                buffer = bytearray(step)
                data = bytearray()
                while count := answer.readinto(buffer):
                    assert count == min(step, len(BODY) - len(data))
                    data += buffer[:count]
                assert data == BODY
                assert answer.readinto(buffer) == 0
        assert server.connections == 1


def test_small_rests_are_read_and_large_ones_cut(transport: Transport) -> None:
    with OddServer(whole) as server:
        for left, connections in ((10 * KIB, 1), (10 * KIB, 1), (500 * KIB, 1), (10 * KIB, 2), (10 * KIB, 2)):
            with transport.request("GET", server.url + "/x", {}) as answer:
                answer.readinto(bytearray(len(BODY) - left))
            assert server.connections == connections


def test_a_short_rest_that_does_not_come_is_not_waited_for(transport: Transport) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked) + BODY[:-1000]
        server.closing.wait(60)

    with OddServer(answer) as server:
        opened = transport.request("GET", server.url + "/x", {})
        opened.readinto(bytearray(len(BODY) - 2000))
        begun = time.monotonic()
        opened.close()
        assert time.monotonic() - begun < 15


@pytest.mark.parametrize("end", [Goodbye, Hangup])
def test_what_came_before_the_end_is_handed_out_to_who_goes_on(transport: Transport, end: type[Exception]) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked) + BODY[: MIB // 2]
        taken.wait(60)
        raise end

    buffer = bytearray(MIB)
    with OddServer(answer) as server:
        for read in ("readinto", "receive"):
            taken = threading.Event()
            with transport.request("GET", server.url + "/x", {}) as opened:
                assert opened.readinto(buffer[: 300 * KIB]) == 300 * KIB
                timer = threading.Timer(0.1, taken.set)
                timer.start()
                if read == "receive":
                    assert opened.receive(buffer) == MIB // 2 - 300 * KIB
                    assert buffer[: 10 * KIB] == BODY[300 * KIB : 310 * KIB]
                for _ in range(2):
                    with pytest.raises(Broken):
                        getattr(opened, read)(buffer)
                timer.join()


def test_a_stall_is_a_timeout_however_it_is_waited_for(transport: Transport) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked) + BODY[:100_000]
        server.closing.wait(60)

    quick = Transport(Cancellation(), read_timeout_s=2.0)
    with OddServer(answer) as server:
        for steps in ((4 * MIB,), (50_000, 4 * MIB)):
            opened = quick.request("GET", server.url + "/x", {})
            for step in steps[:-1]:
                assert opened.readinto(bytearray(step)) == step
            begun = time.monotonic()
            with pytest.raises(Broken, match="timed out"):
                opened.readinto(bytearray(steps[-1]))
            assert 1.9 <= time.monotonic() - begun < 15
    quick.close()


def test_the_timeout_holds_for_the_next_answer_too(transport: Transport) -> None:
    """A socket that was read without a timeout of Python's has one again when it is used for another request."""

    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.number == 1:
            server.closing.wait(60)
        yield ranged(BODY, asked) + BODY

    quick = Transport(Cancellation(), read_timeout_s=2.0)
    with OddServer(answer) as server:
        with quick.request("GET", server.url + "/x", {}) as opened:
            for size in (MIB, MIB, 333):
                assert opened.readinto(bytearray(size)) == size
        cancellation = quick.cancellation
        assert not cancellation.is_set
        begun = time.monotonic()
        # The kept connection does not answer, so it is replaced once; the new one is answered.
        with quick.request("GET", server.url + "/x", {}) as opened:
            assert opened.status == 200
        assert 1.9 <= time.monotonic() - begun < 15
        assert server.connections == 2
    quick.close()


def test_a_cancellation_waits_for_nobody_once_the_interpreter_ends() -> None:
    """Daemon threads are stopped then wherever they are, and what they hold is never let go of."""
    program = """
import sys, threading
from dfc.http.retry import Cancellation
cancellation, held = Cancellation(), threading.Event()
def hold():
    with cancellation._lock:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
def read():
    try:
        yield
    finally:
        cancellation.cancel()
left = read()
next(left)
sys.exit(3)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30).returncode == 3


@pytest.mark.parametrize("received", [1000, 200_000])
def test_cancelling_ends_a_read_that_waits(received: int) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked) + BODY[:received]
        server.closing.wait(60)

    cancellation = Cancellation()
    transport = Transport(cancellation, read_timeout_s=30)
    with OddServer(answer) as server:
        opened = transport.request("GET", server.url + "/x", {})
        buffer = bytearray(len(BODY))
        opened.readinto(memoryview(buffer)[: received // 2])
        timer = threading.Timer(0.1, cancellation.cancel)
        timer.start()
        begun = time.monotonic()
        with pytest.raises(Cancelled):
            opened.readinto(buffer)
        assert time.monotonic() - begun < 15
        timer.join()
    transport.close()


def test_a_server_that_takes_no_connection_in_time() -> None:
    """A full queue of a listening socket: packets are dropped, as by a firewall."""
    quick = Transport(Cancellation(), connect_timeout_s=0.3)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        begun = time.monotonic()
        with pytest.raises(NotConnected):
            quick.request("GET", f"http://127.0.0.1:{listener.getsockname()[1]}/", {})
        assert time.monotonic() - begun < 10
        for filler in fillers:
            filler.close()
    quick.close()


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the single call."""
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    made += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    def answer(asked: Asked) -> Iterator[bytes]:
        yield ranged(BODY, asked) + BODY[: MIB if asked.target == "/cut" else None]
        if asked.target == "/cut":
            raise Goodbye

    with OddServer(answer, context) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        trusting = Transport(Cancellation(), read_timeout_s=5)
        for _ in range(2):
            with trusting.request("GET", server.url + "/x", {}) as opened:
                buffer = bytearray(4 * MIB)
                assert opened.readinto(buffer) == len(BODY)
                assert buffer[: len(BODY)] == BODY
        assert server.connections == 1
        with trusting.request("GET", server.url + "/cut", {}) as opened:
            assert opened.receive(buffer) == MIB
            with pytest.raises(Broken):
                opened.receive(buffer)
        trusting.close()
        monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
        careful = Transport(Cancellation())
        with pytest.raises(WrongAddress, match="certificate is not trusted: self"):
            careful.request("GET", server.url + "/x", {})
        careful.close()


def test_an_empty_answer(transport: Transport) -> None:
    def answer(_asked: Asked) -> Iterator[bytes]:
        yield head("200 OK", "Content-Length: 0")

    with OddServer(answer) as server:
        for _ in range(3):
            with transport.request("GET", server.url + "/x", {}) as opened:
                assert opened.readinto(bytearray(10)) == 0
        assert server.connections == 1


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_answer_that_is_given_up_resets_its_connection(cancelled: bool) -> None:
    """Also when all that has come was read: after an orderly end the node could wait for a minute for a reader."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cancellation = Cancellation()
        transport = Transport(cancellation)
        met: list[object] = []

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.settimeout(20)
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(10))
                try:
                    while (end := connection.recv(1)) or cancelled:  # cancelling ends one direction in an orderly way first
                        connection.sendall(b"?" if cancelled else b"")
                    met.append(end)
                except OSError as error:
                    met.append(type(error))

        thread = threading.Thread(target=serve)
        thread.start()
        answer = transport.request("GET", f"http://127.0.0.1:{listener.getsockname()[1]}/x", {})
        assert answer.readinto(bytearray(10)) == 10
        if cancelled:
            cancellation.cancel()
        answer.close()
        thread.join(30)
        assert met[0] in (ConnectionResetError, BrokenPipeError)


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
