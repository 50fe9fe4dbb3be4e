"""The commands of `dfc` against fake nodes: what they do, print and end with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from copied import map_of
from doors import NoDoor
from harness import wait_for, was_interrupted

from dfc.checksum import checksum_of
from dfc.cli import cluster as cluster_command
from dfc.cli import moves as moves_command

DFC = [sys.executable, "-m", "dfc"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, one of them deeper."""
    root = tmp_path / "folder"
    for name in ("a.tar", "b.tar", "deep/er/c.tar"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode() * 100)
    return root


class TestPut:
    def test_one_file(self, fake: Any, dfc: Any, folder: Path) -> None:
        assert dfc("put", folder / "a.tar").code == 0
        assert dfc("put", folder / "a.tar", "b/").code == 0
        assert dfc("put", folder / "a.tar", "b/d/").code == 0
        assert dfc("put", folder / "a.tar", "b/other name").code == 0
        assert dfc("put", folder / "a.tar", f"{fake.url}/b/by%20url").code == 0
        wanted = {("default", "a.tar"), ("b", "a.tar"), ("b", "d/a.tar"), ("b", "other name"), ("b", "by url")}
        assert set(fake.target.objects) == wanted

    def test_folders_and_globs(self, fake: Any, dfc: Any, folder: Path) -> None:
        assert dfc("put", "-r", folder, "b/set/").code == 0
        assert sorted(name for _, name in fake.target.objects) == ["set/a.tar", "set/b.tar", "set/deep/er/c.tar"]
        assert dfc("put", f"{folder}/**/*.tar", "g/").code == 0
        assert sorted(name for bucket, name in fake.target.objects if bucket == "g") == ["a.tar", "b.tar", "c.tar"]

    def test_skips_what_is_there_with_the_same_checksum(self, fake: Any, dfc: Any, folder: Path) -> None:
        dfc("put", "-r", folder, "b/")
        fake.target.objects["b", "a.tar"] = b"x" * len(fake.target.objects["b", "a.tar"])
        fake.target.log.clear()
        ran = dfc("put", "-r", folder, "b/", "--json")
        assert sorted((line["name"], line["status"]) for line in ran.json) == [
            ("b/a.tar", "stored"),
            ("b/b.tar", "skipped"),
            ("b/deep/er/c.tar", "skipped"),
        ]
        assert len(fake.target.requests("PUT")) == 1
        dfc("put", "-r", folder, "b/", "--force")
        assert len(fake.target.requests("PUT")) == 4

    def test_json_tells_all(self, fake: Any, dfc: Any, folder: Path) -> None:
        (line,) = dfc("put", folder / "a.tar", "b/x", "--json").json
        body = (folder / "a.tar").read_bytes()
        assert line == {
            "status": "stored", "name": "b/x", "bucket": "b", "object": "x", "path": str(folder / "a.tar"),
            "size": len(body), "checksum": checksum_of(body), "samples": None, "warnings": ["w"],
        }  # fmt: skip

    @pytest.mark.parametrize("arguments", [["FOLDER", "b/"], ["FOLDER/a.tar", "FOLDER/b.tar", "b/x"], ["-r", "FOLDER", "b/x"]])
    def test_usage(self, fake: Any, dfc: Any, folder: Path, arguments: list[str]) -> None:
        ran = dfc("put", *(argument.replace("FOLDER", str(folder)) for argument in arguments))
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("dfc: ")
        assert fake.target.objects == {}

    def test_missing_files(self, fake: Any, dfc: Any, folder: Path) -> None:
        ran = dfc("put", folder / "none", "b/")
        assert (ran.code, ran.err) == (3, f"dfc: {folder}/none: no such file or folder\n")
        assert dfc("put", f"{folder}/*.none", "b/").code == 3

    def test_one_bad_name_fails_alone(self, fake: Any, dfc: Any, folder: Path) -> None:
        (folder / "bad\nname").write_bytes(b"1")
        ran = dfc("put", "-r", folder, "b/")
        assert ran.code == 2
        assert "control characters" in ran.err
        assert len(fake.target.objects) == 3

    def test_failures_are_counted(self, fake: Any, dfc: Any, folder: Path) -> None:
        for code, status in (("no_space", 507), ("checksum_mismatch", 422), ("checksum_mismatch", 422)):
            fake.target.fail("PUT", status=status, code=code)
        ran = dfc("put", "-r", "-j", "1", folder, "b/")
        assert ran.code == 1
        assert "said no_space" in ran.err
        assert "stored 1 (1.3 kB), 2 FAILED" in ran.err

    def test_tries_again(self, fake: Any, dfc: Any, folder: Path) -> None:
        for _ in range(3):
            fake.target.fail("PUT", status=503)
        assert dfc("put", folder / "a.tar", "b/").code == 0
        for _ in range(3):
            fake.target.fail("PUT", status=503)
        ran = dfc("put", folder / "b.tar", "b/", "--retries", "1")
        assert ran.code == 4
        assert ran.err == f"dfc: {folder}/b.tar: said unavailable\n"

    def test_standard_input(self, fake: Any) -> None:
        done = subprocess.run([*DFC, "put", "-", "b/x"], input=b"from a pipe", check=False, timeout=30)
        assert done.returncode == 0
        assert fake.target.objects == {("b", "x"): b"from a pipe"}
        assert subprocess.run([*DFC, "put", "-", "b/"], input=b"", check=False, capture_output=True).returncode == 2


class TestGet:
    @pytest.fixture(autouse=True)
    def objects(self, fake: Any) -> None:
        for name in ("a.tar", "b.tar", "d/c.tar", "d/e/f.tar", "n@2.tar"):
            fake.target.objects["b", name] = name.encode() * 100

    def files(self, root: Path) -> list[str]:
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def test_one_object(self, dfc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert dfc("get", "b/a.tar").code == 0
        assert dfc("get", "b/a.tar", "new name").code == 0
        assert dfc("get", "b/d/c.tar", "made/").code == 0
        assert dfc("get", "b/a.tar", "b/b.tar", "made").code == 0
        assert self.files(tmp_path) == ["a.tar", "made/a.tar", "made/b.tar", "made/c.tar", "new name"]

    def test_folders_globs_and_specs(self, dfc: Any, tmp_path: Path) -> None:
        for address, found in (
            ("b/", ["a.tar", "b.tar", "d/c.tar", "d/e/f.tar", "n@2.tar"]),
            ("b/d/", ["c.tar", "e/f.tar"]),
            ("b/*.tar", ["a.tar", "b.tar", "n@2.tar"]),
            ("b/d/**/*.tar", ["c.tar", "e/f.tar"]),
            ("b/{a,b}.tar", ["a.tar", "b.tar"]),
            ("b/n@2.tar", ["n@2.tar"]),  # the name of an object is no count
        ):
            target = tmp_path / str(abs(hash(address)))
            ran = dfc("get", "-r", address, target)
            assert (ran.code, self.files(target)) == (0, found)

    def test_a_spec_with_gaps(self, fake: Any, dfc: Any, tmp_path: Path) -> None:
        ran = dfc("get", "b/{a,missing,b}.tar", f"{tmp_path}/")
        assert ran.code == 3
        assert "b/missing.tar: said object_not_found" in ran.err
        assert self.files(tmp_path) == ["a.tar", "b.tar"]

    def test_nothing_matches(self, dfc: Any, tmp_path: Path) -> None:
        ran = dfc("get", "b/*.zip", "b/a.tar", f"{tmp_path}/")
        assert (ran.code, self.files(tmp_path)) == (3, ["a.tar"])
        assert "nothing matches" in ran.err

    def test_usage(self, dfc: Any, tmp_path: Path) -> None:
        assert dfc("get", "b/d/", f"{tmp_path}/").code == 2
        ran = dfc("get", "b/*.tar", tmp_path / "new")
        assert (ran.code, self.files(tmp_path)) == (2, [])
        assert "end it with '/'" in ran.err

    def test_skips_what_is_there(self, fake: Any, dfc: Any, tmp_path: Path) -> None:
        dfc("get", "-r", "b/", tmp_path)
        (tmp_path / "a.tar").write_bytes(b"other")
        (tmp_path / "b.tar").write_bytes(b"x" * 500)
        fake.target.log.clear()
        ran = dfc("get", "-r", "b/", tmp_path, "--json")
        wanted = dict.fromkeys(("a.tar", "b.tar"), "fetched") | dict.fromkeys(("d/c.tar", "d/e/f.tar", "n@2.tar"), "skipped")
        assert {line["name"].removeprefix("b/"): line["status"] for line in ran.json} == wanted
        assert (tmp_path / "a.tar").read_bytes() == b"a.tar" * 100
        fake.target.log.clear()
        dfc("get", "b/a.tar", tmp_path / "a.tar")
        assert fake.target.requests("GET") == []

    def test_a_lasting_mismatch(self, fake: Any, dfc: Any, tmp_path: Path) -> None:
        for _ in range(2):
            fake.target.fail("GET", corrupt=True)
        ran = dfc("get", "b/a.tar", f"{tmp_path}/")
        assert (ran.code, self.files(tmp_path)) == (5, [])

    def test_an_object_in_the_way_of_a_folder(self, fake: Any, dfc: Any, tmp_path: Path) -> None:
        fake.target.objects["b", "a.tar/x"] = b"1"
        ran = dfc("get", "-r", "-j", "1", "b/", tmp_path)
        assert ran.code == 1
        assert "a.tar/x" in ran.err

    def test_names_from_a_listing_cannot_leave_the_folder(self, fake: Any, dfc: Any, tmp_path: Path) -> None:
        fake.proxy.objects["b", "../outside"] = b"1"
        ran = dfc("get", "-r", "b/", tmp_path / "in")
        assert ran.code == 2
        assert not (tmp_path / "outside").exists()

    def test_ctrl_c_keeps_the_part_for_the_next_run(self, fake: Any, dfc: Any, tmp_path: Path) -> None:
        body = os.urandom(3_000_000)
        fake.target.objects["b", "big"] = body
        hang = threading.Event()
        fake.target.fail("GET", cut_after=2_500_000)
        fake.target.fail("GET", hang=hang)
        running = subprocess.Popen([*DFC, "get", "b/big", f"{tmp_path}/big"], stderr=subprocess.PIPE, text=True)
        wait_for(lambda: len(fake.target.requests("GET", "big")) == 2, "the second request")
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
        hang.set()
        assert (was_interrupted(running.returncode), err) == (True, "dfc: interrupted\n")
        (part,) = tmp_path.iterdir()
        assert part.name == f"big.{checksum_of(body)}.part"
        assert 0 < part.stat().st_size <= 2_500_000
        assert dfc("get", "b/big", tmp_path / "big").code == 0
        assert (tmp_path / "big").read_bytes() == body
        assert fake.target.requests("GET", "big")[-1][1]["range"].startswith("bytes=")


class TestCat:
    @pytest.fixture(autouse=True)
    def objects(self, fake: Any) -> None:
        for name in ("a", "b"):
            fake.target.objects["b", name] = name.encode() * 5

    def test_objects(self, dfc: Any) -> None:
        assert dfc("cat", "b/a", "b/b").out == "aaaaabbbbb"
        assert dfc("cat", "-r", "b/").out == "aaaaabbbbb"
        assert dfc("cat", "b/{b,a}").out == "bbbbbaaaaa"

    @pytest.mark.parametrize(
        ("span", "out"), [("1-2", "12"), ("7-", "789"), ("-3", "789"), ("0-99", "0123456789"), ("-99", "0123456789")]
    )
    def test_ranges(self, fake: Any, dfc: Any, span: str, out: str) -> None:
        fake.target.objects["b", "digits"] = b"0123456789"
        assert dfc("cat", "b/digits", f"--range={span}").out == out

    @pytest.mark.parametrize(
        "flags", [["--range=x"], ["--range=-"], ["--range=5-1"], ["--ext=jpg"], ["--member=x", "--sample=y"]]
    )
    def test_usage(self, dfc: Any, flags: list[str]) -> None:
        assert dfc("cat", "b/a", *flags).code == 2

    def test_parts_of_shards(self, fake: Any, dfc: Any) -> None:
        fake.target.replies["/v1/objects/b/a?member=x.jpg"] = b"member"
        fake.target.replies["/v1/objects/b/a?sample=k"] = b"tar"
        fake.target.replies["/v1/objects/b/a?sample=k&ext=jpg"] = b"jpg"
        assert dfc("cat", "b/a", "--member", "x.jpg").out == "member"
        assert dfc("cat", "b/a", "--sample", "k").out == "tar"
        assert dfc("cat", "b/a", "--sample", "k", "--ext", "jpg").out == "jpg"

    def test_missing(self, dfc: Any) -> None:
        ran = dfc("cat", "b/none")
        assert (ran.code, ran.out, ran.err) == (3, "", "dfc: said object_not_found\n")
        ran = dfc("cat", "b/none", "--json")
        said = json.loads(ran.err)["error"]
        assert said == {"code": "object_not_found", "message": "said object_not_found", "subject": None}

    def test_nobody_reads_on(self, fake: Any) -> None:
        fake.target.objects["b", "big"] = bytes(5_000_000)
        running = subprocess.Popen([*DFC, "cat", "b/big"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert running.stdout.read(10) == bytes(10)
        running.stdout.close()
        assert (running.wait(20), running.stderr.read()) == (141, b"")
        running.stderr.close()


class TestShow:
    @pytest.fixture(autouse=True)
    def objects(self, fake: Any) -> None:
        for name in ("a.tar", "d/b.tar", "d/c.tar", "e.tar"):
            fake.target.objects["b", name] = name.encode()

    def test_ls(self, fake: Any, dfc: Any) -> None:
        assert dfc("ls", "b").out == "a.tar\nd/\ne.tar\n"
        assert dfc("ls", "-r", "b/").out == "a.tar\nd/b.tar\nd/c.tar\ne.tar\n"
        assert dfc("ls", "b/d/").out == "d/b.tar\nd/c.tar\n"
        assert dfc("ls", f"{fake.url}/b/d/").out == "d/b.tar\nd/c.tar\n"
        assert dfc("ls", "b/none").code == 3
        assert dfc("ls", "b/d/*.tar").out == "d/b.tar\nd/c.tar\n"
        assert dfc("ls", "b/{a,e,x}.tar").out == "a.tar\ne.tar\n"
        assert dfc("ls", "b/*.zip").code == 3
        assert checksum_of(b"a.tar") in dfc("ls", "-l", "b").out
        rows = dfc("ls", "--json", "b").json
        assert rows[1] == {"prefix": "d/"}
        assert rows[0] == {
            "bucket": "b", "name": "a.tar", "size": 5, "copies": 1, "copies_wanted": 1, "checksum": checksum_of(b"a.tar"),
            "modified": "2026-11-01T00:00:00Z", "samples": None, "members": None,
        }  # fmt: skip

    def test_ls_of_buckets(self, fake: Any, dfc: Any) -> None:
        fake.proxy.replies["/v1/buckets"] = json.dumps({"buckets": [{"name": "b", "objects": 4, "bytes": 10}]}).encode()
        assert dfc("ls").out == "b/\n"
        assert "b/" in dfc("ls", "-l").out
        assert dfc("ls", "--json").json[0]["objects"] == 4
        assert dfc("bucket", "ls").out.split() == ["4", "10", "B", "1", "fsync", "b"]

    def test_copies(self, fake: Any, dfc: Any) -> None:
        """Those of the bucket, by the map; its listing says what it is getting, too."""
        fake.proxy.copies = 2
        assert dfc("ls", "-l", "b/a.tar").out.split()[:3] == ["5", "B", "2"]
        assert "copies    2" in dfc("stat", "b/a.tar").out
        assert [dfc("stat", "b/a.tar", "--json").json[0][key] for key in ("copies", "copies_wanted")] == [2, 2]
        bucket = {"name": "b", "objects": 4, "bytes": 10, "copies": 1, "copies_wanted": 3, "min_copies": 2, "exact": False}
        fake.proxy.replies["/v1/buckets"] = json.dumps({"buckets": [bucket]}).encode()
        fake.proxy.replies["/v1/buckets/b"] = json.dumps(bucket).encode()
        assert "1->3" in dfc("bucket", "ls").out
        assert "1->3" in dfc("ls", "-l").out
        shown = dfc("bucket", "show", "b").out
        assert "1->3" in shown
        assert "min copies 2" in shown
        assert "estimates" in shown

    def test_stat(self, dfc: Any) -> None:
        ran = dfc("stat", "b/a.tar", "b/none", "--json")
        assert ran.code == 3
        assert ran.json[0]["checksum"] == checksum_of(b"a.tar")
        assert ran.json[1]["error"]["code"] == "object_not_found"
        assert "size      5" in dfc("stat", "b/a.tar").out

    def test_keys(self, fake: Any, dfc: Any) -> None:
        fake.proxy.replies["/v1/buckets/b/samples"] = b'{"shard":"a.tar","key":"k","members":{"jpg":3,"cls":1}}\n'
        assert dfc("keys", "b/").out == "a.tar\tk\n"
        assert dfc("keys", "-m", "b/a-@3.tar").out == "a.tar\tk\tjpg=3 cls=1\n"
        assert dfc("keys", "-m", "--json", "b/x").json == [{"shard": "a.tar", "key": "k", "members": {"jpg": 3, "cls": 1}}]

    def test_find_shows_what_is_there_and_ends_by_ctrl_c(self, fake: Any) -> None:
        hit = {"shard": "a.tar", "number": 7, "key": "k", "members": {"jpg": 3}}
        end = {"found": 1, "shards": 9, "searched": 1, "stopped": "time", "next_token": "t"}
        answer = "\n".join(json.dumps(line) for line in (hit, {"end": end})).encode()
        fake.proxy.replies["/v1/buckets/b/samples"] = answer
        hang = threading.Event()
        fake.proxy.fail("GET", cut_after=len(answer))
        fake.proxy.fail("GET", hang=hang)
        running = subprocess.Popen([*DFC, "find", "b", "k"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: len(fake.proxy.requests("GET", "samples")) == 2, "the second page")
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
        hang.set()
        assert (was_interrupted(running.returncode), err) == (True, "dfc: interrupted\n")
        assert out == "a.tar\t7\tk\tjpg=3\n"
        assert "token=t" in fake.proxy.requests("GET", "samples")[1][0]

    def test_rm(self, fake: Any, dfc: Any) -> None:
        assert dfc("rm", "b/d/").code == 2
        assert dfc("rm", "b/none").code == 3
        assert dfc("rm", "b/a.tar").code == dfc("rm", "b/*.tar").code == 0
        assert dfc("rm", "-r", "b/d/", "--json").json[0]["status"] == "deleted"
        assert fake.target.objects == {}


WELL = {"health": "ok", "step": 7, "map_version": 9, "coordinator": "p1", "registry": "embedded"}
ILL = {
    "health": "degraded",
    "step": 7,
    "map_version": 9,
    "problems": [
        {
            "code": "target_down",
            "severity": "warning",
            "subject": "t1",
            "since": "2026-11-01T00:00:00.000Z",
            "message": "target t1 [x] is down",
            "what_to_do": "start the target",
            "docs": "docs/operations.md#target_down",
        }
    ],
    "copies": {"one_left": 12, "missing": 13, "unavailable": 3, "estimated": True},
    "out_of_sync": [{"disk": "d2", "node": "t2", "out_of_sync_with": ["d1"], "since": "2026-11-01T00:00:00.000Z", "hints": 5}],
    "raising": [{"bucket": "b", "copies": 1, "copies_wanted": 2, "disks_done": 1, "disks": 3}],
}


class TestCluster:
    def test_buckets(self, fake: Any, dfc: Any) -> None:
        shown = {
            "name": "b", "created": "2026-11-01T00:00:00Z", "objects": 1, "bytes": 2, "copies": 1, "copies_wanted": 1,
            "min_copies": 1, "exact": True, "durability": "relaxed",
        }  # fmt: skip
        fake.proxy.replies["/v1/buckets/b"] = json.dumps(shown).encode()
        assert dfc("bucket", "create", "b", "--durability", "relaxed").code == 0
        assert dfc("bucket", "show", "b", "--json").json == [shown]
        assert "durability relaxed" in dfc("bucket", "show", "b").out
        assert dfc("bucket", "set", "b", "--durability", "fsync").code == 0
        assert dfc("bucket", "set", "b").code == 2
        assert dfc("bucket", "set", "b", "--copies", "9").code == 2
        assert dfc("bucket", "create", "b", "--copies", "2", "--min-copies", "2").code == 0
        assert dfc("bucket", "set", "b", "--min-copies", "1").code == 0
        assert dfc("bucket", "rm", "-f", "b").code == 0
        fake.proxy.fail("DELETE", status=409, code="bucket_not_empty")
        ran = dfc("bucket", "rm", "b")
        assert (ran.code, ran.err) == (1, "dfc: said bucket_not_empty\n")

    def test_status_and_map(self, fake: Any, dfc: Any) -> None:
        fake.proxy.replies["/v1/cluster/status"] = json.dumps(WELL).encode()
        ran = dfc("cluster", "status")
        assert ran.code == 0
        assert "healthy" in ran.out
        assert "step 7, map version 9, coordinator p1" in ran.out
        assert dfc("cluster", "map", "--json").json[0]["cluster_id"] == "c"
        assert json.loads(dfc("cluster", "map").out)["version"] == 1
        assert dfc("cluster", "status", "--json").json[0]["problems"] == []

    def test_status_of_a_cluster_with_problems(self, fake: Any, dfc: Any) -> None:
        fake.target.state = "down"
        fake.proxy.replies["/v1/cluster/status"] = json.dumps(ILL).encode()
        ran = dfc("cluster", "status", "--json")
        assert (ran.code, ran.json[0]["healthy"], ran.json[0]["health"]) == (4, False, "degraded")
        assert ran.json[0]["problems"] == ILL["problems"]
        assert "down" in [node["state"] for node in ran.json[0]["nodes"]]
        shown = dfc("cluster", "status")
        assert shown.code == 4
        for words in (
            "warning  target_down t1, since 2026-11-01T00:00:00Z",
            "  target t1 [x] is down",
            "  to do: start the target",
            "copies: about 13 objects have fewer than wanted, 12 of them one only; 3 cannot be read now",
            "out of sync: disk d2 of t2 with 1 other since 2026-11-01T00:00:00Z, 5 objects and deletes to go",
            "more copies: bucket b from 1 to 2, 1 of 3 disks are done",
            "degraded (step 7, map version 9, coordinator none)",
        ):
            assert words in shown.out, words

    def test_weights_in_the_status(self, fake: Any, dfc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        move = {"to": 2, "slices": {"copying": 256}, "disks_in": ["d9"], "disks_weighed": ["disk-1"], "hints": 5}
        fake.proxy.replies["/v1/cluster/status"] = json.dumps({**WELL, "rebalance": move}).encode()
        found = json.loads(fake.proxy.map())
        found["nodes"][1]["disks"][0] |= {"weight": 400.0, "wanted_weight": 0.5}
        monkeypatch.setattr(fake.proxy, "map", lambda: json.dumps(found).encode())
        shown = dfc("cluster", "status").out
        assert "moving objects to d9 and by the new weight of disk-1: 0 %, 5 objects" in shown
        assert "disk-1  400 to 0.5  " in shown
        disk = dfc("cluster", "status", "--json").json[0]["nodes"][1]["disks"][0]
        assert (disk["weight"], disk["present_weight"], disk["wanted_weight"]) == (400.0, 400.0, 0.5)
        found |= {
            "layouts": [{"number": 1, "disks": ["disk-1"], "weights": {"disk-1": 0.5}}],
            "slices": [{"first": 0, "at": 1}],
        }
        assert "disk-1     0.5  " in dfc("cluster", "status").out

    def test_ids_stay_whole_on_a_narrow_terminal(self, fake: Any, dfc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are there to be copied."""
        found = json.loads(fake.proxy.map())
        node, disk = "target-ce9ce68a", "85f8915eba5b4a678d0c6c1b7a52f9e3"
        found["nodes"][1] |= {"id": node, "disks": [found["nodes"][1]["disks"][0] | {"id": disk}]}
        monkeypatch.setattr(fake.proxy, "map", lambda: json.dumps(found).encode())
        monkeypatch.setattr(moves_command, "WIDTH", 80)
        fake.proxy.replies["/v1/cluster/status"] = json.dumps(WELL).encode()
        words = dfc("cluster", "status").out.split()
        assert {node, disk} <= set(words)

    def test_a_disk_by_the_beginning_of_its_id(self, fake: Any, dfc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """If only its id begins so. A target is always named in full: `target-1` is not `target-10`."""
        found = json.loads(fake.proxy.map())
        disk = found["nodes"][1]["disks"][0]
        ids = ("85f8915eba5b", "85f8915eff00")
        found["nodes"][1] |= {"id": "target-ce9ce68a", "disks": [disk | {"id": each} for each in ids]}
        monkeypatch.setattr(fake.proxy, "map", lambda: json.dumps(found).encode())
        fake.proxy.replies["/v1/cluster/disks/85f8915eba5b"] = b'{"disks": ["85f8915eba5b"]}'
        assert "85f8915eba5b" in dfc("cluster", "drain", "85f8915eba").out
        ran = dfc("cluster", "drain", "85f8915e")
        assert (ran.code, "the ids of 2 disks begin with 85f8915e" in ran.err) == (1, True)
        for unknown in ("85f8915", "target-c", "85f8915eba5b0"):
            assert dfc("cluster", "drain", unknown).code == 3, unknown
        assert [path for path, _ in fake.proxy.requests("PATCH")] == ["/v1/cluster/disks/85f8915eba5b"]

    def test_waiting_says_when_it_is_done(self, fake: Any, dfc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        move = {"to": 2, "slices": {"copying": 256}, "disks_out": ["disk-1"], "hints": 5}
        fake.proxy.replies["/v1/cluster/disks/disk-1"] = b'{"disks": ["disk-1"]}'
        fake.proxy.replies["/v1/cluster/status"] = json.dumps({**WELL, "rebalance": move}).encode()

        def sleep(_: float) -> None:
            fake.proxy.replies["/v1/cluster/status"] = json.dumps(WELL).encode()

        monkeypatch.setattr(moves_command, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0))
        ran = dfc("cluster", "drain", "disk-1", "--wait")
        _, moving, done = ran.out.splitlines()
        assert moving == "moving objects away from disk-1: 0 %, 5 objects and deletes to be copied"
        assert done == "done: all objects are where they belong"
        monkeypatch.setattr(moves_command, "BEGIN_S", -1.0)
        assert dfc("cluster", "drain", "disk-1", "--wait").out.splitlines()[1:] == ["done: nothing had to be moved"]

    def test_ok_to_stop(self, fake: Any, dfc: Any) -> None:
        fake.proxy.replies["/v1/health/without/t1"] = b'{"node": "t1", "ok": true}'
        ran = dfc("cluster", "ok-to-stop", "t1")
        assert (ran.code, ran.out) == (0, "t1 may be stopped: every object can be read without it\n")
        assert dfc("cluster", "ok-to-stop", "t1", "--json").json == [{"node": "t1", "ok": True}]
        fake.proxy.fail("GET", status=409, code="still_needed")
        ran = dfc("cluster", "ok-to-stop", "t1")
        assert (ran.code, ran.out, ran.err) == (5, "", "dfc: said still_needed\n")

    def test_status_with_several_proxies(self, fake: Any, dfc: Any) -> None:
        proxies = [{"id": "p1", "url": "http://a:1"}, {"id": "p2", "url": "http://b:1"}]
        state = {**WELL, "registry": "etcd", "registry_latency_s": 0.00234, "proxies": proxies}
        fake.proxy.replies["/v1/cluster/status"] = json.dumps(state).encode()
        assert "coordinator p1 of 2 proxies, etcd answers in 2.3 ms" in dfc("cluster", "status").out
        assert dfc("cluster", "status", "--json").json[0]["proxies"] == proxies

    def test_weight(self, fake: Any, dfc: Any) -> None:
        fake.proxy.replies["/v1/cluster/disks/disk-1"] = b'{"disks": ["disk-1"], "weights": {"disk-1": 2.5}}'
        fake.proxy.replies["/v1/cluster/nodes/node-1"] = b'{"disks": ["disk-1"], "weights": {"disk-1": 7.0}}'
        ran = dfc("cluster", "weight", "disk-1", "2.5")
        assert ran.code == 0
        assert "disk disk-1 gets the weight 2.5\nobjects are moved accordingly" in ran.out
        assert dfc("cluster", "weight", "node-1", "7", "--json").json == [{"disks": ["disk-1"], "weights": {"disk-1": 7.0}}]
        assert len(fake.proxy.requests("PATCH")) == 2
        assert dfc("cluster", "weight", "nothing", "7").code == 3
        for wrong in ("0", "-1", "x", "2e9", "nan"):
            assert dfc("cluster", "weight", "disk-1", wrong).code == 2, wrong
        assert len(fake.proxy.requests("PATCH")) == 2

    def test_remove(self, fake: Any, dfc: Any) -> None:
        ran = dfc("cluster", "remove", "disk-1")
        assert (ran.code, ran.out) == (0, "disk-1 is not in the cluster any more\n")
        fake.proxy.replies["/v1/cluster/disks/disk-1"] = b'{"disks": ["disk-1"]}'
        ran = dfc("cluster", "remove", "disk-1", "--accept-loss")
        assert "objects are moved to a layout without disk-1; when that is done, disk-1 is forgotten for good" in ran.out
        assert dfc("cluster", "remove", "disk-1", "--json").json == [{"removing": "disk-1"}]
        assert [path for path, _ in fake.proxy.requests("DELETE")] == [
            "/v1/cluster/disks/disk-1", "/v1/cluster/disks/disk-1?accept_loss=1", "/v1/cluster/disks/disk-1"
        ]  # fmt: skip

    def test_status_again_and_again(self, fake: Any, dfc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Until Ctrl-C, also while the proxy is away."""
        fake.proxy.replies["/v1/cluster/status"] = json.dumps(WELL).encode()
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(moves_command, "time", SimpleNamespace(sleep=sleep))
        ran = dfc("cluster", "status", "--watch", "--json")
        assert (ran.code, len(ran.json), waits) == (130, 3, [moves_command.WATCH_S] * 3)
        assert "Traceback" not in ran.err
        del fake.proxy.replies["/v1/cluster/status"]
        waits.clear()
        ran = dfc("cluster", "status", "--watch")
        assert (ran.code, ran.err.count("invalid answer"), len(waits)) == (130, 3, 3)

    def test_status_is_not_watched_at_a_wrong_address(self, dfc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """What will not become right is an error at once."""
        monkeypatch.setattr(moves_command, "time", SimpleNamespace(sleep=lambda _: pytest.fail("it waits")))
        ran = dfc("cluster", "status", "--watch", "--url", "ftp://x")
        assert ran.code == 2, ran.err

    def test_scrub(self, fake: Any, dfc: Any) -> None:
        disk = {"disk": "d1", "state": "running", "bytes_done": 5, "bytes_total": 10, "errors": 0, "quarantined": []}
        fake.proxy.replies["/v1/cluster/scrub"] = json.dumps({"disks": [disk]}).encode()
        assert dfc("scrub", "start").code == 0
        assert dfc("scrub", "start", "--json").json == [{"started": True}]
        ran = dfc("scrub", "status")
        assert (ran.code, "50 %" in ran.out) == (0, True)
        fake.proxy.replies["/v1/cluster/scrub"] = json.dumps({"disks": [{**disk, "quarantined": ["x"]}]}).encode()
        assert dfc("scrub", "status", "--json").code == 5

    @pytest.mark.parametrize(
        ("pair", "code", "said"),
        [
            ({"rows": 5}, 0, "5 objects in 1 of 1 pairs of disks compared: all alike"),
            ({"rows": 5, "differing": 2, "repaired": 1, "set_aside": 1}, 0, "2 differed, 1 repaired, 1 set aside"),
            ({"rows": 5, "differing": 2, "repaired": 1, "under_way": 1}, 4, "2 differed, 1 repaired, 1 on their way"),
            ({"rows": 5, "differing": 1, "alarms": 1}, 5, "1 differed, 1 left as they are"),
            ({"not_compared": "d2 is down"}, 4, "not compared: disk d1 with d2: d2 is down"),
        ],
    )
    def test_copies_are_compared(self, fake: Any, dfc: Any, pair: dict[str, Any], code: int, said: str) -> None:
        totals = {"pairs": 1, "pairs_compared": int("not_compared" not in pair)}
        totals |= {key: value for key, value in pair.items() if key != "not_compared"}
        alarm = {"bucket": "b", "object": "x", "replica": "d2", "what": "alarm", "message": "newer"}
        found = [alarm] if "alarms" in pair else []
        disk = {"disk": "d1", "node": "t1", "state": "done", "pairs": [{"replica": "d2", **pair}], "found": found}
        answer = {"check": "c1", "state": "done", "totals": totals, "disks": [disk]}
        fake.proxy.replies["/v1/cluster/check"] = json.dumps(answer).encode()
        ran = dfc("cluster", "check")
        assert (ran.code, said in ran.out, "CONTRADICTS: b/x on disk d2: newer" in ran.out) == (code, True, bool(found))
        [facts] = dfc("cluster", "check", "--json").json
        assert (facts["check"], facts["not_compared"] != []) == ("c1", "not_compared" in pair)
        assert dfc("cluster", "check", "b", "--no-wait").code == 0
        assert dfc("cluster", "check", "--no-wait", "--json").json == [{"check": "c1"}]
        assert dfc("cluster", "check", "--last").code == code

    def test_the_last_comparison(self, fake: Any, dfc: Any) -> None:
        fake.proxy.replies["/v1/cluster/check"] = b'{"state": "none"}'
        ran = dfc("cluster", "check", "--last")
        assert (ran.code, "no copies have been compared" in ran.out) == (0, True)
        fake.proxy.replies["/v1/cluster/check"] = b'{"state": "running", "check": "c1"}'
        ran = dfc("cluster", "check", "--last")
        assert (ran.code, "all alike so far" in ran.out) == (4, True)
        assert dfc("cluster", "check", "--last", "b").code == 2
        fake.proxy.replies["/v1/cluster/check"] = b'{"state": "done", "check": "c1"}'
        ran = dfc("cluster", "check", "--last")
        assert (ran.code, ran.out) == (0, "nothing to compare: no object has a second copy\n")

    def test_what_would_be_lost_with_a_disk(self) -> None:
        def losses(**given: Any) -> str:
            return "; ".join(cluster_command._losses(map_of(**given), "d2"))

        assert losses(down=("d2",)) == ""
        assert "disk d1 is not up either" in losses(down=("d1", "d2"))
        assert "disk d3 may lack the last uploads" in losses(down=("d2",), out_of_sync_with={"d3": ("d2",)})
        assert losses(down=("d2",), out_of_sync_with={"d3": ("d1",)}) == ""
        single = map_of(down=("d2",), copies=1)
        for objects, heard, loss in ((0, "now", ""), (5, "now", "5 objects"), (0, "", "is not known"), (5, "", "is not known")):
            nodes = tuple(
                msgspec.structs.replace(
                    node,
                    disks=tuple(msgspec.structs.replace(each, objects=objects) for each in node.disks),
                    last_heartbeat=heard,
                )
                for node in single.nodes
            )
            found = cluster_command._losses(msgspec.structs.replace(single, nodes=nodes), "d2")
            assert (len(found), loss in "; ".join(found)) == (1 if loss else 0, True)

    def test_disk_runs_the_program_of_the_storage_engine(self, dfc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[list[str]] = []

        def run(arguments: list[str], **_: Any) -> Any:
            seen.append(arguments)
            return subprocess.CompletedProcess(arguments, 7)

        monkeypatch.setattr(subprocess, "run", run)
        assert dfc("disk", "check", "/d").code == 7
        assert dfc("disk", "rebuild", "/d", "--json").code == 7
        assert [arguments[1:] for arguments in seen] == [
            ["-m", "dfc.storage", "check", "/d"],
            ["-m", "dfc.storage", "rebuild", "/d", "--json"],
        ]


class TestProgram:
    def test_nobody_there(self, dfc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        with NoDoor() as nowhere:
            monkeypatch.setenv("DFC_URL", nowhere.url)
            for command in (["ls"], ["get", "b/x"], ["cluster", "status"], ["cat", "b/x"]):
                ran = dfc(*command)
                assert ran.code == 4
                assert ran.err.startswith("dfc: ")
                assert len(ran.err.splitlines()) == 1

    def test_a_bad_url(self, dfc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DFC_URL", "localhost:8080")
        ran = dfc("ls")
        assert ran.code != 0
        assert "http://host:port" in ran.err

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"\xff", "is not JSON"),
            (b"[" * 100_000, "is not JSON"),
            (b"[]", "is not a job"),
            (b'{"options": []}', "JSON object"),
        ],
        ids=["bytes", "deep", "a list", "options"],
    )
    def test_a_file_that_is_no_job(self, dfc: Any, tmp_path: Path, content: bytes, said: str) -> None:
        (tmp_path / "job.json").write_bytes(content)
        ran = dfc("job", "run", tmp_path / "job.json", "--option", "a=1")
        assert (ran.code, said in ran.err) == (2, True), ran

    def test_a_setting_of_serve_that_is_wrong(self, dfc: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("DFC_DRAIN_TIMEOUT_S", "soon")
        ran = dfc("serve", "--dir", tmp_path / "data")
        assert (ran.code, "variable DFC_DRAIN_TIMEOUT_S" in ran.err, (tmp_path / "data").exists()) == (2, True, False), ran

    def test_the_token(self, fake: Any, dfc: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("DFC_TOKEN", "secret")
        (tmp_path / "x").write_bytes(b"1")
        dfc("put", tmp_path / "x", "b/x")
        assert fake.target.requests("PUT")[0][1]["authorization"] == "Bearer secret"
        assert fake.proxy.requests("GET", "/v1/cluster")[0][1]["authorization"] == "Bearer secret"
        fake.target.fail("PUT", status=401, code="unauthorized")
        ran = dfc("put", tmp_path / "x", "b/y")
        assert (ran.code, "unauthorized" in ran.err) == (6, True)

    def test_help_is_there_for_every_command(self, dfc: Any) -> None:
        names = ["put", "get", "cat", "ls", "stat", "rm", "keys", "serve", "proxy", "target"]
        groups = ["bucket", "cluster", "disk", "scrub", "config"]
        shown = dfc("--help")
        assert shown.code == 0
        assert all(name in shown.out for name in names + groups)
        for name in (*names[:8], "bucket", "bucket create", "cluster status", "disk rebuild", "scrub start"):
            assert dfc(*name.split(), "--help").code == 0

    def test_help_imports_nothing_slow(self) -> None:
        """`dfc --help` takes 0.3 s; what would make it slow is seen from what it imports, whatever else the machine does."""
        program = """if True:
            import sys, dfc.cli.main
            try:
                dfc.cli.main.app(args=["--help"])
            except SystemExit:
                print(*sys.modules, file=sys.stderr)"""
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        assert not {"httpx", "aiohttp", "numpy", "msgspec", "asyncio"} & set(done.stderr.split())

    def test_a_command_that_asks_imports_no_second_command_line(self) -> None:
        """That of httpx, with what colours the code that it shows."""
        program = """if True:
            import sys, dfc.cli.main
            sys.argv = ["dfc", "ls"]
            try:
                dfc.cli.main.main()
            except SystemExit as ended:
                print(ended.code, *sys.modules)"""
        environment = {**os.environ, "DFC_URL": "http://127.0.0.1:9"}
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
        code, *modules = done.stdout.split()
        assert (code, "cannot connect" in done.stderr) == ("4", True)
        assert "httpx" in modules
        assert not {"pygments", "rich.syntax"} & set(modules)

    def test_version(self, dfc: Any) -> None:
        assert dfc("--version").out.startswith("dfc 0.")

    def test_unknown_commands_and_options(self, dfc: Any) -> None:
        assert dfc("nonsense").code == 2
        assert dfc("ls", "--nonsense").code == 2
