from __future__ import annotations

import errno
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faulty_filesystem import FaultyFileSystem, commit_and_fail, fail_with

from dfc.errors import DiskRefused
from dfc.filesystem import FileSystem, Upgrades, open_database, read_header, refusal

SCHEMA = "CREATE TABLE things (name TEXT);"


def opened(path: Path, filesystem: FileSystem | None = None, version: int = 3) -> sqlite3.Connection:
    return open_database(
        str(path), "a list of things", SCHEMA, version, filesystem or FileSystem(), way_out="throw it away",
        fill=lambda database: database.execute("INSERT INTO things VALUES ('first')"),
    )  # fmt: skip


def names(database: sqlite3.Connection) -> list[str]:
    return [name for (name,) in database.execute("SELECT name FROM things")]


def names_in(path: Path) -> list[str]:
    with closing(opened(path)) as database:
        return names(database)


def test_it_is_made_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "d.sqlite"
    database = opened(path)
    assert names(database) == ["first"]
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database.execute("PRAGMA synchronous").fetchone() == (2,)
    assert path.stat().st_mode & 0o777 == 0o600
    database.execute("INSERT INTO things VALUES ('second')")
    database.close()
    assert names_in(path) == ["first", "second"]
    assert sorted(file.name.partition("-")[0] for file in path.parent.iterdir())[0] == "d.sqlite"


def test_wherever_making_it_fails_it_is_whole_or_not_there(tmp_path: Path) -> None:
    filesystem = FaultyFileSystem()
    filesystem.arm()
    opened(tmp_path / "whole.sqlite", filesystem).close()
    assert len(filesystem.names) > 8
    for call in range(len(filesystem.names)):
        path = tmp_path / f"{call}.sqlite"
        faulty = FaultyFileSystem(fail_with(5))
        faulty.arm(call)
        with pytest.raises(OSError):
            opened(path, faulty)
        assert names_in(path) == ["first"]


def test_one_whose_schema_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    opened(path).close()
    data = bytearray(path.read_bytes())
    for at in range(len(SCHEMA) - 1):
        harmed = bytearray(data)
        harmed[data.index(SCHEMA[:-1].encode()) + at] ^= 0x80
        path.write_bytes(harmed)
        with pytest.raises(DiskRefused, match=r"is not a list of things: .*throw it away"):
            opened(path)
        assert path.read_bytes() == harmed
    path.write_bytes(data)
    assert names_in(path) == ["first"]


def test_the_log_of_one_that_was_moved_away_is_not_played_into_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    database = opened(path)
    database.execute("INSERT INTO things VALUES ('of the old one')")
    log = (tmp_path / "d.sqlite-wal").read_bytes()
    assert len(log) > 1000
    database.close()
    path.unlink()
    (tmp_path / "d.sqlite-wal").write_bytes(log)
    assert names_in(path) == ["first"]


@pytest.mark.parametrize("left", [b"", b"\0" * 4096, b"not a database " * 100])
def test_a_damaged_one_is_refused_and_left_alone(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "d.sqlite"
    path.write_bytes(left)
    with pytest.raises(DiskRefused, match="not a list of things") as caught:
        opened(path)
    assert str(path) in caught.value.message
    assert caught.value.message.endswith("throw it away")
    assert path.read_bytes() == left


def test_one_of_another_version_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "d.sqlite", version=4).close()
    before = _bytes_below(tmp_path)
    with pytest.raises(DiskRefused, match=r"in format 4, and this version of DFC reads format 3\. Nothing was changed\. Run"):
        opened(tmp_path / "d.sqlite")
    assert _bytes_below(tmp_path) == before


# What makes a list of things of version 3 one of version 4, and that one of version 5; none was ever released.
UPGRADES: Upgrades = {
    3: lambda database: database.execute("ALTER TABLE things ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'"),
    4: lambda database: database.execute("UPDATE things SET colour = 'blue' WHERE name = 'first'"),
}


def upgraded(path: Path, filesystem: FileSystem | None = None) -> list[tuple[str, str]]:
    """Open a list of things with the version that has colours; what is in it."""
    found = open_database(
        str(path), "a list of things", "", 5, filesystem or FileSystem(), way_out="throw it away", upgrades=UPGRADES
    )
    with closing(found) as database:
        return list(database.execute("SELECT name, colour FROM things"))


def test_one_of_an_older_version_is_upgraded_for_good(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    with closing(opened(path)) as database:
        database.execute("INSERT INTO things VALUES ('second')")
    for _ in range(2):
        assert upgraded(path) == [("first", "blue"), ("second", "red")]
    before = _bytes_below(tmp_path)
    with pytest.raises(DiskRefused, match="in format 5, and this version of DFC reads format 3"):
        opened(path)
    assert _bytes_below(tmp_path) == before


def test_one_that_a_newer_version_was_about_to_change_is_not_called_damaged(tmp_path: Path) -> None:
    """It was killed when its log had the new version, and the header not yet."""
    opened(tmp_path / "d.sqlite").close()
    copy = tmp_path / "copy"
    with closing(sqlite3.connect(tmp_path / "d.sqlite")) as newer:
        newer.execute("PRAGMA user_version = 5")
        shutil.copytree(tmp_path, copy)
    assert read_header(str(copy / "d.sqlite")).user_version == 3
    with pytest.raises(DiskRefused, match=r"in format 5, and this version of DFC reads format 3\. Nothing was changed\. Run"):
        opened(copy / "d.sqlite")


def _fail_to_commit(name: str, real: Callable[..., object], *arguments: object, **named: object) -> object:
    return fail_with(errno.EIO)(name, real, *arguments) if name == "commit" else real(*arguments, **named)


@pytest.mark.parametrize(("fault", "left"), [(_fail_to_commit, 3), (commit_and_fail, 5)])
def test_an_upgrade_that_fails_can_be_repeated(tmp_path: Path, fault: Any, left: int) -> None:
    path = tmp_path / "d.sqlite"
    opened(path).close()
    faulty = FaultyFileSystem(fault)
    faulty.arm(0, every=1)
    with pytest.raises(DiskRefused, match="full, read-only or failing"):
        upgraded(path, faulty)
    assert read_header(str(path)).user_version == left
    assert upgraded(path) == [("first", "blue")]


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE notes (text)")
    before = path.read_bytes()
    said = r"is not a list of things: it is of another program, or of DFC before .*throw it away"
    with pytest.raises(DiskRefused, match=said):
        opened(path)
    assert path.read_bytes() == before


def test_one_of_another_version_that_was_cut_off_keeps_its_log(tmp_path: Path) -> None:
    """SQLite plays the log of a database into it when it closes it: who is refused does not open it."""
    living = opened(tmp_path / "d.sqlite", version=4)
    living.execute("CREATE TABLE more (id INTEGER)")
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tmp_path.glob("d.sqlite*"):
        (copy / file.name).write_bytes(file.read_bytes())
    living.close()
    before = _bytes_below(copy)
    assert any(name.endswith("-wal") and content for name, content in before.items())
    with pytest.raises(DiskRefused, match="in format 4"):
        opened(copy / "d.sqlite")
    assert _bytes_below(copy) == before


def _bytes_below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


_WITHOUT_ROOM = """
import resource, signal, sys
from dfc.filesystem import open_database, refusal
from dfc.errors import DiskRefused
from dfc.filesystem import FileSystem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # what is to be written has no room
try:
    open_database(sys.argv[1], "a list of things", "", 3, FileSystem(), way_out="throw it away")
except DiskRefused as error:
    print(error.message)
"""


def test_a_full_disk_is_not_taken_for_damage(tmp_path: Path) -> None:
    """Or somebody puts an old copy in the place of a file that is sound."""
    path = tmp_path / "d.sqlite"
    with closing(opened(path)) as database:
        database.execute("INSERT INTO things VALUES ('second')")
    command = [sys.executable, "-c", _WITHOUT_ROOM, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert re.search(r"cannot open .*may be intact, so do not remove it: free some space", done.stdout), done
    assert "throw it away" not in done.stdout
    assert names_in(path) == ["first", "second"]


def test_trouble_is_told_from_damage() -> None:
    for code, is_trouble in (
        (sqlite3.SQLITE_FULL, True),
        (sqlite3.SQLITE_IOERR_WRITE, True),
        (sqlite3.SQLITE_CANTOPEN, True),
        (sqlite3.SQLITE_IOERR_SHORT_READ, False),
        (sqlite3.SQLITE_CORRUPT, False),
        (sqlite3.SQLITE_NOTADB, False),
    ):
        error = sqlite3.DatabaseError("it says so")
        error.sqlite_errorcode = code
        assert ("may be intact" in refusal("/d", "a registry", error, "throw it away").message) == is_trouble, code
