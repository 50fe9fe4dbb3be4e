"""Bodies on their way out, and what a node says meanwhile."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest

from dfc.http import sending
from dfc.http.sending import may_continue, send_parts, send_piece

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
REFUSAL = b"HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 0\r\n\r\n"

Send = Callable[[socket.socket], bool]


@pytest.fixture(params=["piece", "chunk", "parts"])
def send(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Send]:
    """Sends five bytes, in each of the ways in which bodies are sent."""
    path = tmp_path / "body"
    path.write_bytes(b"lo")
    with path.open("rb") as file:
        yield {
            "piece": lambda sock: send_piece(sock, b"hello", False),
            "chunk": lambda sock: send_piece(sock, b"hello", True),
            "parts": lambda sock: send_parts(sock, [(b"hel", file.fileno(), 0, 2)], False),
        }[request.param]


def say(theirs: socket.socket, ours: socket.socket, words: bytes) -> None:
    """Until it has arrived."""
    theirs.sendall(words)
    while ours.recv(len(words), socket.MSG_PEEK) != words:
        pass


def test_a_node_that_is_late_to_say_continue_gets_the_rest(ends: tuple[socket.socket, socket.socket], send: Send) -> None:
    ours, theirs = ends
    assert send(ours)
    say(theirs, ours, CONTINUE)
    assert send(ours)
    received = b""
    while received.count(b"hello") < 2:
        received += theirs.recv(100)
    ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        ours.recv(1, socket.MSG_PEEK)  # who reads the answer must not find it


def test_an_answer_ends_the_sending_also_after_continue(ends: tuple[socket.socket, socket.socket], send: Send) -> None:
    ours, theirs = ends
    say(theirs, ours, CONTINUE + REFUSAL)
    assert not send(ours)
    assert ours.recv(100) == REFUSAL


def test_the_end_of_the_connection_ends_the_sending(ends: tuple[socket.socket, socket.socket], send: Send) -> None:
    ours, theirs = ends
    theirs.shutdown(socket.SHUT_WR)
    assert ours.recv(1, socket.MSG_PEEK) == b""
    assert not send(ours)


@pytest.mark.parametrize("cut", [1, 12, len(CONTINUE) - 1])
def test_continue_may_come_in_two_parts(ends: tuple[socket.socket, socket.socket], send: Send, cut: int) -> None:
    ours, theirs = ends
    say(theirs, ours, CONTINUE[:cut])
    timer = threading.Timer(0.05, theirs.sendall, [CONTINUE[cut:]])
    timer.start()
    assert send(ours)
    timer.join()


def test_half_a_continue_is_not_waited_for_without_end(
    ends: tuple[socket.socket, socket.socket], send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "EXPECT_TIMEOUT_S", 0.2)
    ours, theirs = ends
    say(theirs, ours, CONTINUE[:-2])
    begun = monotonic()
    assert not send(ours)
    assert may_continue(ours)
    assert monotonic() - begun < 20


def test_a_late_continue_while_the_socket_is_full(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    ours, theirs = ends
    path = tmp_path / "large"
    path.write_bytes(os.urandom(32 << 20))
    sent = []
    with path.open("rb") as file:
        thread = threading.Thread(target=lambda: sent.append(send_parts(ours, [(b"", file.fileno(), 0, 32 << 20)], False)))
        thread.start()
        received = len(theirs.recv(1, socket.MSG_WAITALL))
        theirs.sendall(CONTINUE)
        while received < 32 << 20:
            received += len(theirs.recv(1 << 20))
        thread.join()
    assert sent == [True]
