"""Whether histories are linearizable, compared with trying all orders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, permutations
from math import inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.histories import Operation, is_linearizable

VALUES = (None, "a", "b")


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    kind = draw(st.sampled_from(("get", "put", "delete", "swap")))
    outcome = draw(st.sampled_from({"get": ("ok",), "delete": ("ok", "absent", "unknown")}.get(kind, ("ok", "unknown"))))
    value = draw(st.sampled_from(VALUES if kind == "get" else (None,) if kind == "delete" else VALUES[1:]))
    began = draw(st.integers(0, 8))
    ended = 1e9 if outcome == "unknown" else began + draw(st.integers(1, 4)) - 0.5
    gave_up = began + draw(st.sampled_from((1, 3, inf)))
    return Operation(
        kind, "x", value, draw(st.sampled_from(VALUES)) if kind == "swap" else None, began, ended, outcome, gave_up
    )


def explains(order: Sequence[Operation]) -> bool:
    """Whether each has its outcome when they come in this order, and none comes after one that began when it had ended, or
    after a write that was acknowledged and began when it had been given up."""
    for earlier, later in combinations(order, 2):
        is_late = later.outcome == "unknown" and earlier.is_acknowledged and earlier.began > later.gave_up
        if is_late or later.ended < earlier.began:
            return False
    state: Any = None
    for each in order:
        is_read = each.kind == "get" and each.value != state
        is_swap = each.kind == "swap" and each.expected != state
        if is_read or is_swap or (each.kind == "delete" and each.outcome == ("ok" if state is None else "absent")):
            return False
        state = state if each.kind == "get" else each.value
    return True


@settings(max_examples=300, deadline=None)
@given(st.lists(operations(), max_size=5))
def test_it_finds_an_order_if_there_is_one(found: list[Operation]) -> None:
    known = [each for each in found if each.outcome != "unknown"]
    unknown = [each for each in found if each.outcome == "unknown"]
    chosen = chain.from_iterable(combinations(unknown, count) for count in range(len(unknown) + 1))
    assert is_linearizable(found) is any(explains(order) for some in chosen for order in permutations([*known, *some]))


def test_what_was_given_up_does_not_undo_what_came_after_it() -> None:
    """As a proxy did that was stopped with a write in its socket, and went on."""
    old, new = (
        Operation("put", "x", value, None, began, 1e9, "unknown", began + 1) for value, began in (("old", 0.0), ("new", 2.0))
    )
    acknowledged = Operation("put", "x", "new", None, 2.0, 2.5, "ok")
    seen = Operation("get", "x", "old", None, 4.0, 4.5, "ok")
    assert is_linearizable([old, acknowledged, seen]) is False
    assert is_linearizable([old, new, seen]) is True, "nobody has been told that anything newer was written"
    earlier = Operation("get", "x", "old", None, 1.5, 1.9, "ok")
    assert is_linearizable([old, acknowledged, earlier]) is True
