from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfc.errors import DiskRefused, StorageFailed
from dfc.filesystem import FileSystem
from dfc.storage import Disk, ListedRow, ObjectRow
from dfc.storage.catalog.catalog import Catalog, prefix_successor
from dfc.storage.catalog.schema import version_parts, version_text
from dfc.storage.catalog.transaction import Transaction

LETTERS = st.text(st.sampled_from("ab/ä\U0010ffff\ue000"), min_size=1, max_size=5)


@contextmanager
def committing(catalog: Catalog) -> Iterator[Transaction]:
    catalog.writer.execute("BEGIN")
    transaction = Transaction(catalog, "boot")
    yield transaction
    transaction.finish()
    catalog.writer.execute("COMMIT")


def fill(catalog: Catalog, names: list[str], bucket_id: str = "b") -> None:
    with committing(catalog) as transaction:
        for number, name in enumerate(names):
            row = ObjectRow(bucket_id, name, f"{number + 1:014x}0001", number, "0" * 32, number, None)
            transaction.put(row, transaction.current(bucket_id, name))
    catalog.learn_buckets(transaction.buckets)


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_the_successor_of_a_prefix_is_the_first_string_behind_all_that_have_it(prefix: bytes, other: bytes) -> None:
    successor = prefix_successor(prefix)
    if successor is None:
        assert prefix == b"\xff" * len(prefix)
    else:
        assert prefix + other < successor
        assert other < prefix or other.startswith(prefix) or other >= successor


@given(st.integers(0, 2**56 - 1), st.integers(0, 2**16 - 1))
def test_a_version_is_two_numbers_in_the_same_order(us: int, node: int) -> None:
    assert version_parts(version_text(us, node)) == (us, node)


@settings(max_examples=60, deadline=None)
@given(names=st.lists(LETTERS, unique=True, max_size=12), prefix=LETTERS | st.just(""), start=LETTERS | st.just(""))
def test_pages_are_those_of_a_sorted_list(tmp_path_factory: Any, names: list[str], prefix: str, start: str) -> None:
    path = str(tmp_path_factory.mktemp("catalog") / "catalog.sqlite")
    Catalog.create(path, "d", FileSystem())
    catalog = Catalog(path, "d")
    try:
        fill(catalog, names)
        fill(catalog, ["other"], "c")
        for skip in (False, True):
            wanted = [name for name in sorted(names, key=str.encode) if name.startswith(prefix)]
            wanted = [name for name in wanted if name.encode() > start.encode()]
            wanted = [name for name in wanted if not (skip and start and name.startswith(start))]
            for limit in (1, 3, 100):
                page = catalog.list_tuples("b", prefix=prefix, start_after=start, after_prefix=skip, limit=limit)
                assert [entry[0] for entry in page] == wanted[:limit]
                rows = catalog.list_rows("b", prefix=prefix, start_after=start, after_prefix=skip, limit=limit)
                assert [(r.name, r.size, r.checksum, r.modified_us, r.samples, r.members) for r in rows] == page
    finally:
        catalog.close()


def test_a_listing_gives_tuples_of_the_shape_of_listed_objects(disk: Disk) -> None:
    row = disk.put_small("b", "a", b"123").row
    [found] = disk.list_tuples("b", limit=10)
    assert ListedRow(*found) == ListedRow("a", 3, row.checksum, row.modified_us, None, None)
    assert disk.list_tuples("absent", limit=10) == []


def test_counters_follow_every_change(disk: Disk) -> None:
    catalog = disk.parts.catalog
    fill(catalog, ["a", "b", "c", "b"])
    assert catalog.counts("b") == (3, 0 + 3 + 2)
    with committing(catalog) as transaction:
        row = transaction.current("b", "b")
        transaction.remove(row)
        assert transaction.current("b", "b") is None
        transaction.put(row, None)
        transaction.remove(row)
    assert catalog.counts("b") == (2, 2)
    assert catalog.totals() == (2, 2)


def test_many_rows_at_once_are_read_and_written_like_single_ones(disk: Disk) -> None:
    catalog = disk.parts.catalog
    names = [f"n{number:03d}" for number in range(333)]
    fill(catalog, names)
    with committing(catalog) as transaction:
        transaction.load([("b", name) for name in names] + [("b", "absent"), ("unknown", "x")])
        rows = [row for name in names if (row := transaction.current("b", name))]
        assert [row.size for row in rows] == list(range(333))
        for row in rows[:200]:
            transaction.remove(row)
            transaction.write_tombstone("b", row.name, "f" * 18, 1)
    assert [row.name for row in catalog.list_rows("b", prefix="", start_after="", after_prefix=False, limit=999)] == names[200:]
    assert catalog.tombstone("b", "n199") == "f" * 18
    assert catalog.tombstone("b", "n200") is None


def test_readers_see_the_last_commit_from_many_threads(disk: Disk) -> None:
    catalog = disk.parts.catalog
    fill(catalog, ["a"])
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(catalog.find("b", "a"))) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert set(found) == {catalog.find("b", "a")}
    assert len(catalog._idle) <= 16


def test_a_closed_catalog_refuses(disk: Disk) -> None:
    disk.close()
    with pytest.raises(StorageFailed, match="closed"):
        disk.parts.catalog.totals()


def test_a_catalog_is_never_made_by_opening(tmp_path: Any) -> None:
    with pytest.raises(DiskRefused, match="missing"):
        Catalog.open(str(tmp_path), "d")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("schema", [2, 5])
def test_a_catalog_of_another_schema_is_refused_with_its_log_unread(open_disk: Any, tmp_path: Any, schema: int) -> None:
    disk = open_disk()
    disk.put_small("b", "x", b"x")
    disk.parts.catalog.writer.execute(f"PRAGMA user_version = {schema}")
    disk.parts.catalog.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    disk.put_small("b", "y", b"y")
    for path in open_disk.root.glob("catalog.sqlite*"):  # as a crash leaves it, with a log
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DiskRefused, match=f"a catalog in format {schema}, and this version of DFC reads format 1"):
        Catalog.open(str(tmp_path), "disk-1")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert before[tmp_path / "catalog.sqlite-wal"]


def test_a_catalog_that_breaks_while_it_is_read_ends_writing_and_nothing_else(disk: Disk, open_disk: Any) -> None:
    for number in range(2000):
        disk.put_small("b", f"n{number:05d}", b"x", durability="relaxed")
    disk = open_disk.again()
    path = disk.parts.catalog.path
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (os.path.getsize(path) - 8192))
    errors = 0
    for read in (lambda: disk.list("b", limit=5000), lambda: disk.lookup("b", "n01999"), lambda: disk.counts("b"), disk.totals):
        try:
            read()
        except StorageFailed:
            errors += 1
    assert errors > 0
    assert disk.state == "failed"
