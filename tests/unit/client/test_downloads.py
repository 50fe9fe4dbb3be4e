"""Downloads into files: parts, resuming, verification."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from dfc.checksum import checksum_of
from dfc.client import Client
from dfc.client.transfers import part_path, parts_of
from dfc.errors import ChecksumMismatch, Conflict, ObjectNotFound


def ranges(fake: Any) -> list[str]:
    return [headers.get("range", "") for _, headers in fake.target.requests("GET", "objects")]


def test_downloads(client: Client, tmp_path: Path, body: bytes) -> None:
    client.put("b", "x", body)
    moved: list[int] = []
    info = client.get_to_file("b", "x", tmp_path / "x", progress=moved.append)
    assert (tmp_path / "x").read_bytes() == body
    assert info.etag == checksum_of(body)
    assert sum(moved) == len(body)
    assert os.listdir(tmp_path) == ["x"]


def test_an_empty_object_and_a_relative_path(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    client.put("b", "x", b"")
    client.get_to_file("b", "x", "x")
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b""


def test_a_part_is_continued(fake: Any, client: Client, tmp_path: Path, body: bytes) -> None:
    client.put("b", "x", body)
    target = tmp_path / "x"
    Path(part_path(str(target), checksum_of(body))).write_bytes(body[:1_000_001])
    moved: list[int] = []
    client.get_to_file("b", "x", target, progress=moved.append)
    assert target.read_bytes() == body
    assert ranges(fake) == ["bytes=1000000-"]
    assert moved[0] == 1_000_000
    assert sum(moved) == len(body)
    assert os.listdir(tmp_path) == ["x"]


def test_a_part_that_was_complete_already(fake: Any, client: Client, tmp_path: Path, body: bytes) -> None:
    client.put("b", "x", body)
    target = tmp_path / "x"
    Path(part_path(str(target), checksum_of(body))).write_bytes(body)
    client.get_to_file("b", "x", target)
    assert target.read_bytes() == body
    assert ranges(fake) == [f"bytes={len(body) - 1}-"]


@pytest.mark.parametrize("size", [3, 3_600_000])
def test_a_part_of_an_older_version_is_thrown_away(client: Client, tmp_path: Path, body: bytes, size: int) -> None:
    client.put("b", "x", body[:size])
    target = tmp_path / "x"
    Path(part_path(str(target), "0123456789abcdef" * 2)).write_bytes(b"old" * 1000)
    client.get_to_file("b", "x", target)
    assert target.read_bytes() == body[:size]
    assert os.listdir(tmp_path) == ["x"]


def test_a_damaged_part_is_found_at_the_end_and_fetched_anew(fake: Any, client: Client, tmp_path: Path, body: bytes) -> None:
    client.put("b", "x", body)
    target = tmp_path / "x"
    Path(part_path(str(target), checksum_of(body))).write_bytes(b"\1" + body[1:2000])
    moved: list[int] = []
    client.get_to_file("b", "x", target, progress=moved.append)
    assert target.read_bytes() == body
    assert ranges(fake) == ["bytes=1999-", ""]
    assert sum(moved) == len(body)


def test_a_lasting_mismatch_keeps_what_was_there(fake: Any, client: Client, tmp_path: Path, body: bytes) -> None:
    client.put("b", "x", body)
    target = tmp_path / "x"
    target.write_bytes(b"before")
    for _ in range(2):
        fake.target.fail("GET", corrupt=True)
    with pytest.raises(ChecksumMismatch):
        client.get_to_file("b", "x", target)
    assert os.listdir(tmp_path) == ["x"]
    assert target.read_bytes() == b"before"


def test_broken_connections_are_resumed_in_one_call(fake: Any, client: Client, tmp_path: Path, body: bytes) -> None:
    client.put("b", "x", body)
    for cut in (1_500_000, 600_000):
        fake.target.fail("GET", cut_after=cut)
    client.get_to_file("b", "x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == body
    assert len(ranges(fake)) == 3


def test_a_call_that_fails_leaves_its_part_for_the_next(fake: Any, client: Client, tmp_path: Path, body: bytes) -> None:
    client.put("b", "x", body)
    fake.target.fail("GET", cut_after=1_500_000)
    fake.target.fail("GET", status=404, code="object_not_found")
    with pytest.raises(ObjectNotFound):
        client.get_to_file("b", "x", tmp_path / "x")
    (part,) = parts_of(str(tmp_path / "x"))
    kept = os.path.getsize(part)
    assert 0 < kept <= 1_500_000
    client.get_to_file("b", "x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == body
    assert ranges(fake)[-1] == f"bytes={kept - 1}-"


def test_without_resuming(fake: Any, client: Client, tmp_path: Path, body: bytes) -> None:
    client.put("b", "x", body)
    Path(part_path(str(tmp_path / "x"), checksum_of(body))).write_bytes(body[:1000])
    client.get_to_file("b", "x", tmp_path / "x", resume=False)
    assert ranges(fake) == [""]


def test_two_processes_do_not_write_to_one_part(client: Client, tmp_path: Path, body: bytes) -> None:
    client.put("b", "x", body)
    part = Path(part_path(str(tmp_path / "x"), checksum_of(body)))
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Conflict, match="another process"):
            client.get_to_file("b", "x", tmp_path / "x")
    assert part.exists()


def test_a_node_without_etags(fake: Any, client: Client, tmp_path: Path) -> None:
    fake.target.replies["/v1/objects/b/x"] = b"plain"
    for _ in range(2):
        client.get_to_file("b", "x", tmp_path / "x")
        Path(part_path(str(tmp_path / "x"), "")).write_bytes(b"rest of something")
    assert (tmp_path / "x").read_bytes() == b"plain"
