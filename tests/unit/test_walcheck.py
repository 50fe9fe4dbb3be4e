"""Logs of SQLite with a flipped bit: what it would forget is seen before it opens them."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dfc.walcheck import torn_log


def written(path: Path, commits: int, page_bytes: int = 4096) -> list[int]:
    """A database with so many commits in its log, as a killed process leaves it; the size of the log after each."""
    work, sizes = path.with_name("work"), []
    work.unlink(missing_ok=True)
    with closing(sqlite3.connect(work, isolation_level=None)) as database:
        database.execute(f"PRAGMA page_size = {page_bytes}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        database.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, x BLOB)")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for number in range(commits):
            database.execute("INSERT INTO t VALUES (?, ?)", (number, random.randbytes(6000)))
            sizes.append(work.with_name("work-wal").stat().st_size)
        for ending in ("", "-wal"):
            shutil.copy(f"{work}{ending}", f"{path}{ending}")
    return sizes


def kept(path: Path) -> int:
    """How many commits SQLite sees."""
    with closing(sqlite3.connect(path)) as database:
        count: int = database.execute("SELECT count(*) FROM t").fetchone()[0]
    return count


def flip(path: Path, at: int, bit: int = 3) -> None:
    with open(f"{path}-wal", "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
def test_a_log_that_is_sound_is_not_torn(tmp_path: Path, page_bytes: int) -> None:
    path = tmp_path / "db"
    assert torn_log(str(path)) is None, "there is none"
    sizes = written(path, 10, page_bytes)
    assert torn_log(str(path)) is None
    for size in (sizes[4] + 100, sizes[4] - 1, 40, 32, 31, 0):
        with open(f"{path}-wal", "r+b") as file:
            file.truncate(size)
        assert torn_log(str(path)) is None, "it ends in the middle of a write"


def test_every_flip_before_the_last_commit_is_seen(tmp_path: Path) -> None:
    """Wherever SQLite forgets a commit that is complete behind the flip."""
    path, drawn = tmp_path / "db", random.Random(3)
    sizes = written(path, 12)
    database, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    everywhere = [(at, drawn.randrange(8)) for at in (drawn.randrange(sizes[-2]) for _ in range(100))]
    for at, bit in [*((at, bit) for at in range(32) for bit in (0, 5)), *everywhere]:
        path.write_bytes(database)
        Path(f"{path}-wal").write_bytes(log)
        flip(path, at, bit)
        found = torn_log(str(path))
        forgotten = kept(path) < 12
        assert (found is not None) == forgotten, (at, bit)
        assert found is None or found.commits > 1 or at > sizes[-3], "more than a power loss can tear of a registry"


def test_where_it_is_and_what_comes_behind(tmp_path: Path) -> None:
    path = tmp_path / "db"
    sizes = written(path, 5)
    flip(path, sizes[1] + 24 + 10)  # the first page of the third commit
    found = torn_log(str(path))
    assert found is not None
    assert found.frames == (sizes[-1] - 32) // (4096 + 24)
    assert found.frame == (sizes[1] - 32) // (4096 + 24) + 1
    assert found.commits == 3
    assert kept(path) == 2


def test_what_is_behind_the_end_of_the_log_does_not_count(tmp_path: Path) -> None:
    """Frames of the time before the log was begun anew, and of a transaction that was not committed."""
    path = tmp_path / "db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        database.execute("PRAGMA cache_size = 2")
        database.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, x BLOB)")
        for number in range(10):
            database.execute("INSERT INTO t VALUES (?, ?)", (number, bytes(6000)))
        database.execute("PRAGMA wal_checkpoint(PASSIVE)")
        database.execute("INSERT INTO t VALUES (100, 'x')")  # from the beginning of the log
        assert torn_log(str(path)) is None
        database.execute("BEGIN")
        for number in range(200, 220):
            database.execute("INSERT INTO t VALUES (?, ?)", (number, bytes(6000)))  # more than the cache holds: written
        database.execute("ROLLBACK")
        database.execute("INSERT INTO t VALUES (300, 'x')")
        assert torn_log(str(path)) is None
        assert kept(path) == 12


def test_a_log_of_many_frames_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "db"
    sizes = written(path, 1500, 512)
    assert torn_log(str(path)) is None
    flip(path, sizes[700] + 30)
    assert torn_log(str(path)).commits == 1500 - 701
