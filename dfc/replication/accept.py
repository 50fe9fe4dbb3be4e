"""Whether a row is accepted: by the primary from a client, or by a member from the primary. Decided in the transaction."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeVar

from dfc.placement.roles import Roles

V = TypeVar("V", str, tuple[int, int])


class Refusal(Enum):
    """Why a primary does not take a write now."""

    NO_LEASE = "no lease"
    NOT_PRIMARY = "not primary"
    UNSETTLED = "unsettled"
    BUSY = "busy"  # another write of the name is on its way


def refusal(found: Roles, disk: str, *, leased: bool, settled: bool, uncertain: bool) -> Refusal | None:
    """Asked before the body is read, and again in the transaction. None: the disk may take a write of the name."""
    if not leased:
        return Refusal.NO_LEASE
    if found.primary != disk:
        return Refusal.NOT_PRIMARY
    if not settled:
        return Refusal.UNSETTLED
    return Refusal.BUSY if uncertain else None


class UploadOrder(Enum):
    """Where an upload stands that began before the row which is there now."""

    FIRST = "first"  # nothing newer is there: it is committed
    REPLACED = "replaced"  # as if it had been overwritten at once
    FAILED = "failed"  # its own condition cannot have held
    OVERTAKEN = "overtaken"  # it cannot be ordered before the conditional write that is there


def order(version: V, present: V | None, *, conditional: bool, newest_conditional: V | None) -> UploadOrder:
    """An upload draws its version when it begins. `newest_conditional`: the version of the newest conditional write."""
    if present is None or present < version:
        return UploadOrder.FIRST
    if conditional:
        return UploadOrder.FAILED
    if newest_conditional is not None and newest_conditional > version:
        return UploadOrder.OVERTAKEN
    return UploadOrder.REPLACED


class Acceptance(NamedTuple):
    """`taken`: the member has this row or commits it now. `is_newer_map`: it refuses, since its own map has another primary."""

    taken: bool
    commits: bool = False
    is_newer_map: bool = False


def acceptance(found: Roles, primary: str, version: V, present: V | None, *, leased: bool) -> Acceptance:
    """A member's answer to a primary, by the member's map, which is at least as new as the primary's was."""
    if found.primary != primary:
        return Acceptance(taken=False, is_newer_map=True)
    if not leased or (present is not None and present > version):
        return Acceptance(taken=False)
    return Acceptance(taken=True, commits=present is None or present < version)
