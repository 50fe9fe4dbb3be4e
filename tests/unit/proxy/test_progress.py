"""How fast a move is, and how long it may take."""

from __future__ import annotations

from dfc.proxy.facts import LEAST_S, WINDOW_S, MoveProgress


def test_nothing_is_known_at_first() -> None:
    progress = MoveProgress()
    assert (progress.per_s, progress.eta_s) == (None, None)
    progress.note(0.0, 2, 100)
    progress.note(LEAST_S / 2, 2, 50)
    assert (progress.per_s, progress.eta_s) == (None, None)


def test_the_speed_is_that_of_the_last_minute() -> None:
    progress = MoveProgress()
    for second in range(0, 300, 2):
        progress.note(second, 2, 100_000 - 10 * second)
    assert (progress.per_s, progress.eta_s) == (10.0, 9702.0)
    for second in range(300, 300 + 2 * int(WINDOW_S), 2):
        progress.note(second, 2, 97_000 - 100 * (second - 300))
    assert progress.per_s == 100.0


def test_while_more_is_noted_there_is_no_end() -> None:
    progress = MoveProgress()
    for second in range(10):
        progress.note(second, 2, 100 * second)
    assert (progress.per_s, progress.eta_s) == (0.0, None)


def test_another_move_is_counted_anew() -> None:
    progress = MoveProgress()
    for second in range(10):
        progress.note(second, 2, 100 - second)
    progress.note(10, 3, 1000)
    assert progress.per_s is None
    progress.note(20, 3, 980)
    assert (progress.per_s, progress.eta_s) == (2.0, 490.0)
    progress.note(20, None, None)
    assert progress.per_s is None
    progress.note(21, 3, None)
    assert progress.eta_s is None
