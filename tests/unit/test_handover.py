"""Two threads and the rooms that go round between them."""

from __future__ import annotations

import threading
from queue import Empty

import pytest

from dfc.handover import HandOver

WAIT_S = 5.0


def count_up(hand: HandOver[int, int], made: list[int]) -> None:
    """A maker: numbers without an end."""
    while hand.room() is not None:
        made.append(len(made))
        hand.give(made[-1])


def test_no_more_is_made_than_there_are_rooms() -> None:
    hand: HandOver[int, int] = HandOver(range(3))
    made: list[int] = []
    thread = threading.Thread(target=count_up, args=(hand, made))
    thread.start()
    taken = []
    for _ in range(1000):
        taken.append(hand.take())
        assert len(made) <= len(taken) + 2
        hand.give_back(0)
    hand.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert taken == list(range(1000))


def test_a_maker_that_waits_ends_with_close_and_stays_ended() -> None:
    hand: HandOver[int, int] = HandOver([7])
    assert hand.room() == 7
    found: list[int | None] = []
    thread = threading.Thread(target=lambda: found.append(hand.room()))
    thread.start()
    hand.close()
    thread.join(WAIT_S)
    assert found == [None]
    assert hand.room() is None


def test_a_taker_that_waits_ends_with_end_after_what_was_given() -> None:
    hand: HandOver[int, str] = HandOver(range(2))
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.extend((hand.take(), hand.take())))
    assert hand.is_empty
    hand.give("a")
    assert not hand.is_empty
    thread.start()
    hand.end()
    thread.join(WAIT_S)
    assert found == ["a", None]
    with pytest.raises(Empty):
        hand.take_ready()
