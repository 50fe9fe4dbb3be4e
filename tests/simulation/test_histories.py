"""Whether histories are linearizable, compared with trying all orders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, permutations
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
    return Operation(kind, "x", value, draw(st.sampled_from(VALUES)) if kind == "swap" else None, began, ended, outcome)


def explains(order: Sequence[Operation]) -> bool:
    """Whether each has its outcome when they come in this order, and none comes after one that began when it had ended."""
    if any(later.ended < earlier.began for earlier, later in combinations(order, 2)):
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
