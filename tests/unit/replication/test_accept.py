"""Whether a row is taken, and what a read does."""

from __future__ import annotations

import pytest
from placements import BUCKET, placement, with_disk

from dfc.placement.roles import roles
from dfc.replication.write import (
    Acceptance,
    ReadVerdict,
    Refusal,
    TargetLease,
    UploadOrder,
    acceptance,
    lease_s,
    order,
    reading,
    refusal,
)

FOUND = roles(placement("n1a", "n2a", "n3a"), BUCKET, "x")
PRIMARY, READER = FOUND.replicas
OTHER = next(each for each in ("n1a", "n2a", "n3a") if each not in FOUND.replicas)


@pytest.mark.parametrize(
    ("version", "present", "conditional", "newest", "wanted"),
    [
        ("2", None, False, None, UploadOrder.FIRST),
        ("2", "1", False, None, UploadOrder.FIRST),
        ("2", "1", True, "1", UploadOrder.FIRST),
        ("2", "3", False, None, UploadOrder.REPLACED),
        ("2", "3", True, None, UploadOrder.FAILED),
        ("2", "4", False, "3", UploadOrder.OVERTAKEN),
        ("4", "5", False, "3", UploadOrder.REPLACED),
    ],
)
def test_the_order_of_uploads(version, present, conditional, newest, wanted):
    assert order(version, present, conditional=conditional, newest_conditional=newest) is wanted


def test_a_member_takes_what_its_own_primary_sends():
    assert acceptance(FOUND, PRIMARY, "2", "1", leased=True) == Acceptance(taken=True, commits=True)
    assert acceptance(FOUND, PRIMARY, "2", None, leased=True) == Acceptance(taken=True, commits=True)
    assert acceptance(FOUND, PRIMARY, "2", "2", leased=True) == Acceptance(taken=True, commits=False), "it has it"
    assert acceptance(FOUND, PRIMARY, "2", "3", leased=True) == Acceptance(taken=False)
    assert acceptance(FOUND, PRIMARY, "2", "1", leased=False) == Acceptance(taken=False)
    assert acceptance(FOUND, READER, "2", "1", leased=True) == Acceptance(taken=False, is_newer_map=True)


def test_who_takes_writes():
    good = {"leased": True, "peered": True, "in_doubt": False}
    assert refusal(FOUND, PRIMARY, **good) is None
    assert refusal(FOUND, READER, **good) is Refusal.NOT_PRIMARY
    assert refusal(FOUND, PRIMARY, **{**good, "leased": False}) is Refusal.NO_LEASE
    assert refusal(FOUND, PRIMARY, **{**good, "peered": False}) is Refusal.NOT_PEERED
    assert refusal(FOUND, PRIMARY, **{**good, "in_doubt": True}) is Refusal.BUSY


def test_who_serves_reads():
    good = {"peered": True, "in_doubt": False, "pending": False}
    assert reading(FOUND, PRIMARY, **good) is ReadVerdict.SERVE
    assert reading(FOUND, READER, **good) is ReadVerdict.SERVE
    assert reading(FOUND, OTHER, **good) is ReadVerdict.ELSEWHERE
    assert reading(FOUND, PRIMARY, **{**good, "pending": True}) is ReadVerdict.SERVE, "its own row, certain and not yet swept"
    assert reading(FOUND, PRIMARY, **{**good, "in_doubt": True}) is ReadVerdict.WAIT
    assert reading(FOUND, PRIMARY, **{**good, "peered": False}) is ReadVerdict.WAIT
    assert reading(FOUND, READER, **{**good, "pending": True}) is ReadVerdict.ASK_PRIMARY
    lagging = roles(with_disk(placement("n1a", "n2a", "n3a"), READER, out_of_sync_with=frozenset((PRIMARY,))), BUCKET, "x")
    assert reading(lagging, READER, **good) is ReadVerdict.ELSEWHERE


def test_a_lease_counts_from_the_sending():
    lease = TargetLease()
    assert not lease.is_held(0.0)
    lease.extend(10.0, lease_s(10.0))
    assert lease.is_held(17.9)
    assert not lease.is_held(18.0)
    lease.extend(5.0, lease_s(10.0))
    assert lease.left_s(17.0) == 1.0, "a late answer to an earlier heartbeat takes nothing away"
    lease.end()
    assert not lease.is_held(10.1)
