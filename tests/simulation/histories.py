"""Histories of operations on one name, and whether they are linearizable (Wing and Gong, with a memory of states)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, NamedTuple

STATES_MAX = 400_000
Kind = Literal["get", "put", "delete", "swap"]
Outcome = Literal["ok", "failed", "absent", "unknown"]


@dataclass(frozen=True)
class Operation:
    """`value`: what was read or written, None for absent. `expected`: for a swap. An `unknown` one may take effect any time,
    but not after an acknowledged write that began when its client had given it up (`gave_up`)."""

    kind: Kind
    name: str
    value: Any
    expected: Any
    began: float
    ended: float
    outcome: Outcome
    gave_up: float = inf

    @property
    def is_acknowledged(self) -> bool:
        """Whether it has written, and that was said."""
        return self.kind != "get" and self.outcome == "ok"


class _Other:
    """A value that nobody has seen: which one does not matter."""


class _Search(NamedTuple):
    """`known` are to be explained; `unknown` may have taken effect once at any time after they began, or not at all, but not
    after one of the known writes in `bars`, as bits."""

    known: list[Operation]
    unknown: list[Operation]
    seen: set[Any]
    bars: list[int]

    def value(self, op: Operation) -> Any:
        """What is there after a write."""
        return op.value if op.value is None or op.value in self.seen else _Other

    def ways(self, done: int, used: int, state: Any, op: Operation, until: float) -> Iterator[int]:
        """The sets of unknown writes that have been used when an operation is the next one and has the outcome that it had."""
        if op.kind == "put":
            yield used
        elif op.kind == "delete" and op.outcome == "ok":
            yield from self._to_have_something(done, used, state, until)
        else:
            wanted = None if op.kind == "delete" else op.expected if op.kind == "swap" else op.value
            yield from self._to_have(done, used, state, wanted, until)

    def _to_have(self, done: int, used: int, state: Any, wanted: Any, until: float) -> Iterator[int]:
        if state == wanted:
            yield used
            return
        yield from self._by_unknown(done, used, state, until, lambda value: bool(value == wanted))

    def _to_have_something(self, done: int, used: int, state: Any, until: float) -> Iterator[int]:
        if state is not None:
            yield used
            return
        yield from self._by_unknown(done, used, state, until, lambda value: value is not None)

    def _by_unknown(self, done: int, used: int, state: Any, until: float, fits: Callable[[Any], bool]) -> Iterator[int]:
        """By one of the unknown writes that began before `until`, and what that needs itself. It has an effect only if somebody
        notices, so it may as well come just before whoever does. Of those with the same effect that the same writes bar, the
        first is as good as any."""
        tried = set[Any]()
        for number, op in enumerate(self.unknown):
            if op.began > until:
                return
            effect = (op.kind == "swap", op.expected if op.kind == "swap" else None, self.value(op), self.bars[number])
            if used >> number & 1 or done & self.bars[number] or effect in tried or not fits(self.value(op)):
                continue
            tried.add(effect)
            if op.kind == "swap":
                yield from self._to_have(done, used | 1 << number, state, op.expected, until)
            else:
                yield used | 1 << number


def is_linearizable(operations: Sequence[Operation]) -> bool | None:
    """Whether some order explains all of them, beginning with an absent name; None when that was not found out in time."""
    ops = sorted((op for op in operations if not (op.kind == "swap" and op.outcome == "failed")), key=lambda op: op.began)
    seen = {op.value if op.kind == "get" else op.expected for op in ops if op.kind in ("get", "swap")}
    known = [op for op in ops if op.outcome != "unknown"]
    unknown = [op for op in ops if op.outcome == "unknown" and op.kind != "get"]
    bars = [sum(1 << at for at, op in enumerate(known) if op.is_acknowledged and op.began > each.gave_up) for each in unknown]
    search = _Search(known, unknown, seen, bars)
    tried: set[tuple[int, int, Any]] = set()
    stack: list[tuple[int, int, Any]] = [(0, 0, None)]
    while stack:
        done, used, state = here = stack.pop()
        if done == (1 << len(known)) - 1:
            return True
        if here in tried:
            continue
        tried.add(here)
        if len(tried) > STATES_MAX:
            return None
        stack += _following(search, done, used, state)
    return False


def _following(search: _Search, done: int, used: int, state: Any) -> list[tuple[int, int, Any]]:
    """Where one more of the known operations leads: of those that began before any other that is left has ended."""
    left = [(number, op) for number, op in enumerate(search.known) if not done >> number & 1]
    first_end = min(op.ended for _, op in left)
    following = []
    for number, op in left:
        if op.began > first_end:
            break
        if (op.kind == "get" and op.value == state) or (op.outcome == "absent" and state is None):
            # It has only looked, and may come now: if another order explains all, so does that with it moved here.
            return [(done | 1 << number, used, state)]
        after = op.value if op.kind == "get" else search.value(op)
        following += [(done | 1 << number, after_all, after) for after_all in search.ways(done, used, state, op, first_end)]
    return following
