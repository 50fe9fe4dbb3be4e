"""Histories of operations on one name, and whether they are linearizable (Wing and Gong, with a memory of states)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

STATES_MAX = 400_000
Kind = Literal["get", "put", "delete", "swap"]
Outcome = Literal["ok", "failed", "absent", "unknown"]


@dataclass(frozen=True)
class Operation:
    """`value`: what was read or written, None for absent. `expected`: for a swap. An `unknown` one may take effect any time."""

    kind: Kind
    name: str
    value: Any
    expected: Any
    began: float
    ended: float
    outcome: Outcome


def is_linearizable(operations: Sequence[Operation]) -> bool | None:
    """Whether some order explains all of them, beginning with an absent name; None when that was not found out in time."""
    ops = sorted((op for op in operations if not (op.kind == "swap" and op.outcome == "failed")), key=lambda op: op.began)
    wanted = sum(1 << number for number, op in enumerate(ops) if op.outcome != "unknown")
    seen: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = [(0, None)]
    while stack:
        done, state = stack.pop()
        if done & wanted == wanted:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        if len(seen) > STATES_MAX:
            return None
        open_ops = [(number, op) for number, op in enumerate(ops) if not done >> number & 1]
        first_end = min(op.ended for _, op in open_ops)
        following = []
        for number, op in open_ops:
            if op.began > first_end:
                break
            possible, after = _apply(op, state)
            if possible and op.outcome != "unknown" and after == state and op.kind in ("get", "delete"):
                # It has only looked, and may come now: if another order explains all, so does that with it moved here.
                following = [(done | 1 << number, state)]
                break
            if possible:
                following.append((done | 1 << number, after))
        stack += following
    return False


def _apply(op: Operation, state: Any) -> tuple[bool, Any]:
    """Whether an operation could have had its outcome in this state, and the state after it."""
    if op.kind == "get":
        return op.value == state, state
    if op.kind == "put":
        return True, op.value
    if op.kind == "swap":
        return state == op.expected, op.value
    if op.outcome == "absent":
        return state is None, state
    return op.outcome == "unknown" or state is not None, None
