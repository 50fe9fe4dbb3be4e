from __future__ import annotations

import errno
import sqlite3

import pytest

from dfc.errors import NoSpace, StorageFailed, Unavailable
from dfc.storage.health import DiskHealth


@pytest.mark.parametrize(
    ("number", "kind", "counted"),
    [
        (errno.EIO, StorageFailed, 1),
        (errno.EROFS, StorageFailed, 1),
        (errno.ENOSPC, NoSpace, 0),
        (errno.EDQUOT, NoSpace, 0),
        (errno.EMFILE, Unavailable, 0),
    ],
)
def test_errors_of_the_system_become_ours(number: int, kind: type[Exception], counted: int) -> None:
    health = DiskHealth("d", 3)
    error = health.translate(OSError(number, "trouble", "/secret/path"), "writing")
    assert type(error) is kind
    assert "/secret/path" not in str(error)
    assert (health.errors, health.state) == (counted, "up")


def test_the_budget_is_used_up_by_so_many_errors() -> None:
    health = DiskHealth("d", 2)
    health.count(OSError(errno.EIO, "x"), "writing")
    health.require_writable()
    health.count(OSError(errno.EIO, "x"), "writing")
    assert health.state == "failed"
    with pytest.raises(StorageFailed, match="2 I/O errors"):
        health.require_writable()
    health.fail("another reason")
    assert "2 I/O errors" in str(health.reason)


def test_a_catalog_that_fails_ends_writing_unless_it_is_full_or_busy() -> None:
    health = DiskHealth("d", 100)
    full = sqlite3.OperationalError("full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    assert type(health.translate_catalog(full, "changing it")) is NoSpace
    busy = sqlite3.OperationalError("unable to open database file")
    busy.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
    assert type(health.translate_catalog(busy, "reading it")) is Unavailable
    assert health.state == "up"
    assert type(health.translate_catalog(sqlite3.DatabaseError("malformed"), "reading it")) is StorageFailed
    assert health.state == "failed"
