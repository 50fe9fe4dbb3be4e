"""What a proxy keeps, and what becomes of it when a part is lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dfc.errors import DiskRefused, OperatorError
from dfc.filesystem import FileSystem
from dfc.servers.proxy import open_file


def ids(directory: Path) -> tuple[str, str]:
    """Of cluster and proxy."""
    registry = open_file(str(directory), FileSystem())
    try:
        return registry.state.map.cluster_id, registry.node_id
    finally:
        registry.close()


def test_a_proxy_keeps_its_ids(tmp_path: Path) -> None:
    found = ids(tmp_path / "proxy")
    assert found[1].startswith("proxy-")
    assert (tmp_path / "proxy" / "dfc-node-id").read_text() == f"{found[1]}\n"
    assert ids(tmp_path / "proxy") == found


@pytest.mark.parametrize("left", [None, b"", b"\0" * 16, b"proxy-12", b"proxy-of-another-time\n"])
def test_its_own_id_comes_back_from_the_registry(tmp_path: Path, left: bytes | None) -> None:
    found = ids(tmp_path)
    (tmp_path / "dfc-node-id").unlink()
    if left is not None:
        (tmp_path / "dfc-node-id").write_bytes(left)
    assert ids(tmp_path) == found
    assert (tmp_path / "dfc-node-id").read_text() == f"{found[1]}\n"


def test_a_registry_that_is_gone_is_missed_and_not_made_anew(tmp_path: Path) -> None:
    found = ids(tmp_path)
    for name in ("registry.sqlite", "registry.sqlite-wal", "registry.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    for left in (f"{found[1]}\n", ""):
        (tmp_path / "dfc-node-id").write_text(left)
        with pytest.raises(DiskRefused, match=r"registry.sqlite is missing") as caught:
            ids(tmp_path)
        assert f"remove {tmp_path}/dfc-node-id" in caught.value.message
        assert not (tmp_path / "registry.sqlite").exists()
    (tmp_path / "dfc-node-id").unlink()  # the way out
    assert ids(tmp_path)[0] != found[0]


@pytest.mark.parametrize("left", [b"", b"\0" * 8192, b"rubbish " * 1000])
def test_a_registry_that_is_torn_is_refused(tmp_path: Path, left: bytes) -> None:
    ids(tmp_path)
    (tmp_path / "registry.sqlite").write_bytes(left)
    with pytest.raises(DiskRefused, match=r"is not a registry.*Restore a copy of it"):
        ids(tmp_path)
    assert (tmp_path / "registry.sqlite").read_bytes() == left


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM meta WHERE key = 'cluster_id'",
        "UPDATE meta SET value = 'x' WHERE key = 'version'",
        "INSERT INTO nodes VALUES ('t1', 1, X'7B')",
        "INSERT INTO buckets VALUES ('b', X'7B7D')",
        "DROP TABLE nodes",
    ],
)
def test_a_registry_with_parts_missing_is_refused(tmp_path: Path, harm: str) -> None:
    ids(tmp_path)
    database = sqlite3.connect(tmp_path / "registry.sqlite", isolation_level=None)
    database.execute(harm)
    database.close()
    with pytest.raises(DiskRefused, match=r"is not a registry: .*Restore a copy of it"):
        ids(tmp_path)


def test_a_registry_that_does_not_know_its_proxy_learns_it(tmp_path: Path) -> None:
    found = ids(tmp_path)
    database = sqlite3.connect(tmp_path / "registry.sqlite", isolation_level=None)
    database.execute("DELETE FROM meta WHERE key = 'node_id'")
    database.close()
    (tmp_path / "dfc-node-id").write_text("")
    with pytest.raises(OperatorError, match=r"dfc-node-id is empty"):
        ids(tmp_path)
    (tmp_path / "dfc-node-id").write_text("proxy-1\n")
    assert ids(tmp_path) == (found[0], "proxy-1")
    (tmp_path / "dfc-node-id").unlink()
    assert ids(tmp_path) == (found[0], "proxy-1")
