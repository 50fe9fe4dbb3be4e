"""Whether the process stood still, as its clock tells, and whether the other end of a connection is closed."""

from __future__ import annotations

import asyncio
import socket

import pytest
from clocks import Clock

from dfc.http.exchange import AFTER_S, LOOK_S, PAUSE_S, Pauses, has_closed


async def until_looked(pauses: Pauses) -> None:
    handle = pauses._handle
    for _ in range(1000):
        await asyncio.sleep(LOOK_S / 10)
        if pauses._handle is not handle:
            return
    raise AssertionError("it does not look")


async def test_a_pause_is_seen_while_it_lasts_and_for_what_it_may_have_held_up() -> None:
    clock = Clock()
    pauses = Pauses(clock)
    assert not pauses.within(5)  # before the start nothing is known
    pauses.start()
    clock.seconds += PAUSE_S - 0.01
    assert not pauses.within(100)
    await until_looked(pauses)
    assert not pauses.within(100)  # the usual
    clock.seconds += PAUSE_S + 0.01
    assert pauses.within(0)  # a thread may run before the event loop does
    await until_looked(pauses)
    assert pauses.within(0)
    clock.seconds += AFTER_S / 4
    await until_looked(pauses)
    clock.seconds += AFTER_S / 4
    await until_looked(pauses)
    assert pauses.within(0)  # may have been read since, and sent before
    for _ in range(4):
        clock.seconds += AFTER_S / 4
        await until_looked(pauses)
    assert not pauses.within(0)
    assert pauses.within(1.0)  # was read before the pause had ended
    pauses.stop()
    clock.seconds += 100
    assert not pauses.within(0)


@pytest.mark.parametrize("how", ["closes", "shuts its side", "resets"])
@pytest.mark.parametrize("unread", [b"", b"bytes that are still to be read"])
def test_the_other_end_is_closed(ends: tuple[socket.socket, socket.socket], how: str, unread: bytes) -> None:
    near, far = ends
    assert not has_closed(near)
    far.sendall(unread)
    assert not has_closed(near)
    if how == "shuts its side":
        far.shutdown(socket.SHUT_WR)
    else:
        if how == "resets":
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
    assert has_closed(near)
