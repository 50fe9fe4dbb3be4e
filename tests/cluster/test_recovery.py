"""A registry that is lost is made anew by the commands of the docs, and every byte is there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_process import Etcd, etcd
from failures.nodes import PROXY, Nodes

SETTINGS = {"down_after_s": 6, "expected_targets": 1}


def run(*arguments: str) -> str:
    """What `dfc registry` prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DFC_")}
    command = [sys.executable, "-m", "dfc", "registry", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


def send(url: str, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    """What is answered; 0 and nothing if nobody does."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, body, method=method), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


class Data:
    """Objects, as they are to be, in a bucket with one copy and in one with two."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def write(self, nodes: Nodes, word: str, numbers: range) -> None:
        for number in numbers:
            for bucket in ("one", "two"):
                name, content = f"/{bucket}/o{number}", f"{word} {bucket} {number} ".encode() * 300
                self.put(nodes, name, content)

    def put(self, nodes: Nodes, name: str, content: bytes) -> None:
        """Write, at last: a target may be taken for down because the machine is busy."""
        nodes.until(lambda: send(nodes.url, name, "PUT", content)[0] in (200, 201), f"the write of {name}", 60)
        self.objects[name] = content

    def delete(self, nodes: Nodes, name: str) -> None:
        nodes.until(lambda: send(nodes.url, name, "DELETE")[0] in (204, 404), f"the deletion of {name}", 60)
        del self.objects[name]

    def is_there(self, nodes: Nodes) -> bool:
        return all(send(nodes.url, name) == (200, content) for name, content in self.objects.items())


def begin(nodes: Nodes, data: Data) -> None:
    nodes.start_all()
    for bucket, copies in (("one", 1), ("two", 2)):
        assert send(nodes.url, f"/v1/buckets/{bucket}", "PUT", json.dumps({"copies": copies}).encode())[0] == 201
    data.write(nodes, "first", range(30))


def check_all(nodes: Nodes, data: Data) -> None:
    """Everything is there, nothing that was deleted is back, and the cluster is well and goes on."""
    nodes.until(lambda: data.is_there(nodes), "every byte", 90)
    assert send(nodes.url, "/two/o3")[0] == 404
    nodes.until(lambda: json.loads(send(nodes.url, "/v1/cluster/status")[1])["health"] == "ok", "health", 90)
    data.write(nodes, "third", range(20, 40))
    assert send(nodes.url, "/v1/buckets/new", "PUT", b"{}")[0] == 201
    assert data.is_there(nodes)


def check_old(nodes: Nodes, data: Data) -> None:
    """A proxy that was started on an old copy of its registry changes nothing, and denies nothing."""
    assert send(nodes.url, "/later/x")[0] in (0, 503)
    for _ in range(3):  # each would make a version that targets know with other contents
        assert send(nodes.url, "/v1/buckets/other", "PUT", b"{}")[0] in (0, 503)
        assert send(nodes.url, "/another/x", "PUT", b"x")[0] in (0, 503)
    nodes.until(lambda: "registry_old" in codes(nodes), "the problem to be shown", 30)
    status, answer = send(nodes.url, "/v1/buckets/other", "PUT", b"{}")
    assert (status, json.loads(answer)["error"]["code"]) == (503, "no_registry")
    status, answer = send(nodes.url, "/later/x")
    assert (status, json.loads(answer)["error"]["code"]) == (503, "no_registry")
    assert any(send(nodes.url, name) == (200, content) for name, content in data.objects.items() if name.startswith("/one/"))
    assert "Traceback" not in nodes.log_of(PROXY).read_text()


def codes(nodes: Nodes, url: str = "") -> set[str]:
    """What is wrong."""
    status, answer = send(url or nodes.url, "/v1/cluster/problems")
    return {each["code"] for each in json.loads(answer)["problems"]} if status == 200 else set()


@pytest.mark.parametrize("way", ["recover", "restore", "replace"])
def test_the_registry_of_one_proxy(tmp_path: Path, way: str) -> None:
    """It is lost with its disk; or a backup, or an older copy of the file, is all that is left of it."""
    data = Data()
    with Nodes(tmp_path, 3, 1, **SETTINGS) as nodes:
        place, backup = nodes.place_of(PROXY), str(tmp_path / "backup")
        begin(nodes, data)
        assert "2 buckets" in run("backup", backup, "--dir", str(place))
        kept = tmp_path / "kept"
        if way == "replace":
            nodes.kill(PROXY, signal.SIGTERM)
            shutil.copytree(place, kept)
            nodes.start(PROXY)
            nodes.until(lambda: nodes.is_serving(nodes.targets), "the proxy", 30)
        # What comes after the backup is not in it: a bucket, and a target that goes down and is back.
        assert send(nodes.url, "/v1/buckets/later", "PUT", json.dumps({"copies": 2}).encode())[0] == 201
        data.put(nodes, "/later/x", b"later")
        data.delete(nodes, "/two/o3")
        nodes.kill(nodes.targets[0])
        data.put(nodes, "/two/o4", b"while it is down")
        nodes.start(nodes.targets[0])
        nodes.until(lambda: nodes.is_serving(nodes.targets), "the target", 60)
        data.write(nodes, "second", range(10, 20))
        nodes.kill(PROXY)
        shutil.rmtree(place)
        flags = ["--dir", str(place)]
        if way == "recover":
            made = run("recover", nodes.url_of(nodes.targets[1]), *flags)
        elif way == "restore":
            made = run("restore", backup, *flags)
        else:
            shutil.copytree(kept, place)
            nodes.start(PROXY)
            check_old(nodes, data)
            nodes.kill(PROXY)
            made = run("recover", nodes.url_of(nodes.targets[1]), "--replace", *flags)
        assert f"the registry is in {place} now" in made
        assert "3 buckets" in made
        nodes.start(PROXY)
        check_all(nodes, data)


def test_an_old_registry_that_everything_is_started_with(tmp_path: Path) -> None:
    """Nobody runs who could contradict it; but the disks know the buckets that were made since, and what is in them."""
    data = Data()
    with Nodes(tmp_path, 2, 1, **SETTINGS) as nodes:
        place, kept = nodes.place_of(PROXY), tmp_path / "kept"
        begin(nodes, data)
        nodes.kill(PROXY, signal.SIGTERM)
        shutil.copytree(place, kept)
        nodes.start(PROXY)
        nodes.until(lambda: nodes.is_serving(nodes.targets), "the proxy", 30)
        assert send(nodes.url, "/v1/buckets/later", "PUT", json.dumps({"copies": 1}).encode())[0] == 201
        nodes.until(lambda: send(nodes.url, "/later/x", "PUT", b"later")[0] in (200, 201), "the write", 30)
        nodes.kill_all()  # at once: the map is on the disk as soon as the write is acknowledged
        data.objects["/later/x"] = b"later"
        shutil.rmtree(place)
        shutil.copytree(kept, place)
        nodes.start(PROXY)
        for name in nodes.targets:
            nodes.start(name)
        check_old(nodes, data)
        nodes.kill(PROXY)
        assert "3 buckets" in run("recover", nodes.url_of(nodes.targets[1]), "--replace", "--dir", str(place))
        nodes.start(PROXY)
        nodes.until(lambda: data.is_there(nodes), "every byte", 90)


def test_all_machines_were_off_and_what_is_known_is_old(tmp_path: Path) -> None:
    """Nothing runs any more, the directory of one disk is all that is asked, and by its map a target is in sync that has missed
    writes and a deletion since: what it has must not be read before the others have been asked."""
    data = Data()
    with Nodes(tmp_path, 3, 1, **SETTINGS) as nodes:
        place, late = nodes.place_of(PROXY), nodes.targets[2]
        maps = [disk / "dfc-map.json" for name in nodes.targets for disk in nodes.disks_of(name)]
        begin(nodes, data)
        time.sleep(2)  # disks keep the map of a second ago
        known = [path.read_bytes() for path in maps]
        nodes.kill(late)
        written = [f"/two/o{number}" for number in range(10, 20)]
        for name in written:
            data.put(nodes, name, b"newer")
        data.delete(nodes, "/two/o3")
        nodes.kill_all()
        shutil.rmtree(place)
        for path, content in zip(maps, known, strict=True):
            path.write_bytes(content)
        with pytest.raises(AssertionError, match="3 of 3 targets do not tell what they know"):
            run("recover", str(nodes.disks_of(late)[0]), "--dir", str(place))
        made = run("recover", str(nodes.disks_of(late)[0]), "--incomplete", "--dir", str(place))
        assert made.count("does not tell what it knows") == 3
        for name in (PROXY, *nodes.targets):
            nodes.start(name)
        until_s = time.monotonic() + 10
        while time.monotonic() < until_s:  # whatever is answered, it is not what was before
            for name in written:
                status, content = send(nodes.url, name)
                assert content == b"newer" if status == 200 else status in (0, 503)
            assert send(nodes.url, "/two/o3")[0] in (0, 404, 503)
        check_all(nodes, data)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Etcd]:
    with etcd(1, tmp_path / "etcd") as started:
        yield started


def test_the_registry_in_etcd(tmp_path: Path, registry: Etcd) -> None:
    given = {"etcd_urls": ",".join(registry.urls), "etcd_prefix": "/first/", **SETTINGS}
    data = Data()
    with Nodes(tmp_path / "nodes", 3, 1, proxies=2, **given) as nodes:
        flags = ("--etcd-urls", given["etcd_urls"], "--etcd-prefix")
        begin(nodes, data)
        backup = str(tmp_path / "backup")
        assert "2 buckets" in run("backup", backup, *flags, "/first/")
        data.delete(nodes, "/two/o3")
        data.write(nodes, "second", range(10, 20))
        for name in nodes.proxies:
            nodes.kill(name)
        made = run("restore", backup, *flags, "/second/", "--dir", str(nodes.place_of(PROXY)))
        assert "the registry is in etcd below /second/ now" in made
        nodes.set(etcd_prefix="/second/")
        for name in nodes.proxies:
            nodes.start(name)
        check_all(nodes, data)


def test_an_old_copy_of_etcd(tmp_path: Path, registry: Etcd) -> None:
    """Only the coordinator hears targets, but neither proxy changes the old copy."""
    given = {"etcd_urls": ",".join(registry.urls), "etcd_prefix": "/old/", **SETTINGS}
    data = Data()
    with Nodes(tmp_path / "nodes", 3, 1, proxies=2, **given) as nodes:
        place, kept = tmp_path / "etcd", tmp_path / "kept"
        begin(nodes, data)
        for name in nodes.proxies:
            nodes.kill(name, signal.SIGTERM)
        registry.end()
        shutil.copytree(place, kept)
        registry.start()
        for name in nodes.proxies:
            nodes.start(name)
        nodes.until(lambda: nodes.is_serving(nodes.targets), "the proxies", 30)
        assert send(nodes.url, "/v1/buckets/later", "PUT", json.dumps({"copies": 2}).encode())[0] == 201
        data.put(nodes, "/later/x", b"later")
        data.delete(nodes, "/two/o3")
        for name in nodes.proxies:
            nodes.kill(name)
        registry.end()
        shutil.rmtree(place)
        shutil.copytree(kept, place)
        registry.start()
        for name in nodes.proxies:
            nodes.start(name)
        urls = [nodes.url_of(name) for name in nodes.proxies]
        nodes.until(lambda: all(send(url, "/v1/health")[0] for url in urls), "both proxies to listen", 30)
        version = json.loads(send(urls[0], "/v1/cluster")[1])["version"]
        for number in range(6):  # each would make a version that targets know with other contents
            for url in urls:
                assert send(url, f"/v1/buckets/other{number}", "PUT", b"{}")[0] == 503
                assert send(url, "/v1/buckets/two", "PATCH", b'{"min_copies": 2}')[0] == 503
                assert send(url, "/later/x")[0] == 503
        for url in urls:
            nodes.until(lambda url=url: "registry_old" in codes(nodes, url), "the problem to be shown", 30)
            status, answer = send(url, "/v1/buckets/other", "PUT", b"{}")
            assert (status, json.loads(answer)["error"]["code"]) == (503, "no_registry")
        # The next coordinator knows from the first moment on what the one before has heard.
        found = json.loads(send(urls[0], "/v1/cluster/status")[1])["coordinator"]
        first = next(name for name in nodes.proxies if json.loads(send(nodes.url_of(name), "/v1/health")[1])["id"] == found)
        other = nodes.url_of(next(name for name in nodes.proxies if name != first))
        nodes.kill(first)
        until_s = time.monotonic() + 12
        while time.monotonic() < until_s:
            assert send(other, f"/v1/buckets/b{time.monotonic_ns()}", "PUT", b"{}")[0] == 503
        assert json.loads(send(other, "/v1/cluster")[1])["version"] == version
        for name in nodes.proxies:
            if name in nodes.processes:
                nodes.kill(name, signal.SIGTERM)
        flags = ("--etcd-urls", given["etcd_urls"], "--etcd-prefix", "/old/", "--dir", str(nodes.place_of(PROXY)))
        assert "3 buckets" in run("recover", nodes.url_of(nodes.targets[1]), "--replace", *flags)
        for name in nodes.proxies:
            nodes.start(name)
        check_all(nodes, data)


def test_a_proxy_whose_disk_was_emptied_is_started_all_the_same(tmp_path: Path) -> None:
    """It begins a new cluster, and says that targets of another one ask; that one is put aside."""
    data = Data()
    with Nodes(tmp_path, 2, 1, **SETTINGS) as nodes:
        place, target = nodes.place_of(PROXY), nodes.url_of(nodes.targets[0])
        begin(nodes, data)
        data.delete(nodes, "/two/o3")
        with pytest.raises(AssertionError, match="has a lease, so a proxy of this cluster runs"):
            run("recover", target, "--dir", str(tmp_path / "elsewhere"))
        with pytest.raises(AssertionError, match="is no target, but a proxy"):
            run("recover", nodes.url, "--dir", str(tmp_path / "elsewhere"))
        nodes.kill(PROXY)
        shutil.rmtree(place)
        nodes.start(PROXY)
        nodes.until(lambda: "targets_foreign" in codes(nodes), "the problem to be shown", 30)
        nodes.kill(PROXY)
        with pytest.raises(AssertionError, match="say --replace to put it aside"):
            run("recover", target, "--dir", str(place))
        assert "is of another cluster" in run("recover", target, "--replace", "--dir", str(place))
        nodes.start(PROXY)
        check_all(nodes, data)
