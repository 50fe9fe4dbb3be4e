from __future__ import annotations

import msgspec

from dfc.storage import ObjectRow
from dfc.storage.catalog.cache import CACHED_ATTRIBUTES_BYTES, RowCache


def row(name: str, version: str = "1") -> ObjectRow:
    return ObjectRow("b", name, version, 1, "0" * 32)


def test_rows_that_are_used_stay_and_others_make_room() -> None:
    cache = RowCache(10)
    used = ("b", "used")
    cache.store({used: row("used")})
    for number in range(100):
        cache.store({("b", str(number)): row(str(number))})
        assert cache.get(used) == row("used")
    assert len(cache) <= 10
    assert cache.get(("b", "1")) is None
    assert cache.get(("b", "99")) == row("99")
    assert (cache.hits, cache.misses) == (101, 0)
    cache.ticket(("b", "1"))  # now the catalog is read
    assert (cache.hits, cache.misses) == (101, 1)


def test_a_reader_cannot_put_back_what_a_commit_has_changed_meanwhile() -> None:
    cache, key = RowCache(10), ("b", "a")
    ticket = cache.ticket(key)
    cache.store({key: row("a", "2")})
    cache.fill(key, row("a", "1"), ticket)
    assert cache.get(key) == row("a", "2")


def test_a_reader_that_asked_before_the_commit_and_fills_during_it_is_refused() -> None:
    cache, key = RowCache(10), ("b", "a")
    cache.forget([key])
    ticket = cache.ticket(key)
    cache.store({key: None})
    cache.fill(key, row("a", "1"), ticket)
    assert cache.get(key) is None


def test_a_fill_without_a_commit_in_between_is_kept() -> None:
    cache, key = RowCache(10), ("b", "a")
    cache.fill(key, row("a"), cache.ticket(key))
    assert cache.get(key) == row("a")
    ticket = cache.ticket(key)
    cache.clear()
    cache.fill(key, row("a"), ticket)
    assert cache.get(key) is None


def test_a_forgotten_row_is_gone_from_both_generations() -> None:
    cache = RowCache(4)
    cache.store({("b", str(n)): row(str(n)) for n in range(3)})
    cache.forget([("b", "0"), ("b", "2")])
    assert [cache.get(("b", str(n))) for n in range(3)] == [None, row("1"), None]


def test_rows_with_long_attributes_are_not_kept_and_leave_no_older_one_behind() -> None:
    """Their number is bounded, not their bytes."""
    cache, key = RowCache(10), ("b", "a")
    for length in (0, CACHED_ATTRIBUTES_BYTES):
        short = msgspec.structs.replace(row("a"), attributes=bytes(length))
        cache.store({key: short})
        assert cache.get(key) == short
    long = msgspec.structs.replace(row("a", "2"), attributes=bytes(CACHED_ATTRIBUTES_BYTES + 1))
    cache.store({key: long})
    assert cache.get(key) is None
    cache.fill(key, long, cache.ticket(key))
    assert cache.get(key) is None
