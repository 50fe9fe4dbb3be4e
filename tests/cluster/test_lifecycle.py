"""`dfc serve` as a process: restarts, refusals, a clean end, children that die and a supervisor that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from harness import Cluster, get, is_running, put, try_get, wait_for


@pytest.fixture(scope="module")
def pair(start_cluster) -> Cluster:
    """Two targets, for tests after which all is up again."""
    found: Cluster = start_cluster(targets=2)
    return found


def test_the_space_of_disks_on_one_file_system_counts_once(pair: Cluster) -> None:
    def disks() -> list[dict[str, object]]:
        nodes = json.loads(get(f"{pair.url}/v1/cluster"))["nodes"]
        return [disk for node in nodes if node["role"] == "target" for disk in node["disks"]]

    wait_for(lambda: all(disk["file_system"] and disk["used"] for disk in disks()), "heartbeats of both targets", 30)
    assert len(disks()) == 2
    assert len({disk["file_system"] for disk in disks()}) == 1
    found = os.statvfs(pair.directory)
    capacity = max(int(str(disk["capacity"])) for disk in disks())
    assert capacity == found.f_blocks * found.f_frsize
    text = get(f"{pair.url}/ui").decode()
    shown = re.findall(r'data-live="(used|free|fill)">([^<]*)<', text)
    used = max(int(str(disk["used"])) for disk in disks())
    assert abs(int(dict(shown)["fill"].removesuffix(" %")) - 100 * used / capacity) <= 2  # others write there too


def refusal(cluster: Cluster, *flags: str) -> str:
    """What `dfc serve` says that does not start on the directory of a cluster."""
    command = [sys.executable, "-m", "dfc", "serve", "--dir", str(cluster.directory), "--port", "0", *flags]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    return refused.stderr


def test_data_survives_a_restart_and_smaller_numbers_are_refused(start_cluster) -> None:
    cluster: Cluster = start_cluster(targets=2, disks=2)
    put(f"{cluster.url}/keep/a.bin", b"kept" * 1000)
    assert cluster.stop() == 0
    for flags in (["--targets", "1"], ["--disks", "1"]):
        assert "has --targets 2 --disks 2, and what would be left out" in refusal(cluster, *flags)
    cluster.start()
    assert get(f"{cluster.url}/keep/a.bin") == b"kept" * 1000
    assert "another `dfc serve` is already running" in refusal(cluster)
    assert cluster.stop(signal.SIGINT) == 0


def test_more_targets_and_disks_take_their_share(start_cluster) -> None:
    cluster: Cluster = start_cluster(targets=2, environment={"DFC_JOIN_WAIT_S": "0.5"})
    bodies = {f"grow/{number}.bin": b"%d" % number * 100 for number in range(60)}
    for name, body in bodies.items():
        put(f"{cluster.url}/{name}", body)
    assert cluster.stop() == 0
    cluster.targets, cluster.disks = 3, 2
    cluster.start()

    wait_for(lambda: is_settled(cluster, 6), "objects to be moved")
    assert {name: get(f"{cluster.url}/{name}") for name in bodies} == bodies
    for target, disk in ((2, 0), (2, 1), (0, 1)):
        assert list((cluster.directory / f"target-{target}/disk-{disk}/objects").rglob("*.bin@*")), "it has its share"
    assert cluster.stop() == 0
    cluster.start()
    assert {name: get(f"{cluster.url}/{name}") for name in bodies} == bodies


def ask(cluster: Cluster, method: str, path: str, body: object = None) -> None:
    request = urllib.request.Request(f"{cluster.url}{path}", json.dumps(body).encode(), method=method)
    urllib.request.urlopen(request, timeout=30).close()


def node_of(cluster: Cluster, name: str) -> str:
    """The id of the target with this directory."""
    return (cluster.directory / name / "dfc-node-id").read_text().strip()


def is_settled(cluster: Cluster, count: int) -> bool:
    """Whether all objects are on so many disks."""
    found = cluster.map()
    in_use = {disk for layout in found["layouts"] for disk in layout["disks"]}
    return len(in_use) == count and not any(run.get("to") for run in found["slices"])


class Reader(threading.Thread):
    """Reads all objects all the time; what was not as it should be."""

    def __init__(self, url: str, bodies: dict[str, bytes]) -> None:
        super().__init__(daemon=True)
        self.url, self.bodies, self.problems, self.rounds, self.stopping = url, bodies, list[str](), 0, threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            for name, body in self.bodies.items():
                try:
                    if get(f"{self.url}/{name}") != body:
                        self.problems.append(f"{name} has other bytes")
                except urllib.error.HTTPError as error:
                    self.problems.append(f"{name}: {error.code} {error.read().decode()} at {time.time():.1f}")
                except OSError as error:
                    self.problems.append(f"{name}: {error}")
            self.rounds += 1

    def end(self) -> None:
        self.stopping.set()
        self.join(60)
        assert self.problems[:5] == []
        assert self.rounds > 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("copies", [1, 2])
def test_six_targets_on_the_directory_of_four_and_five_again(start_cluster, copies: int) -> None:
    environment = {"DFC_JOIN_WAIT_S": "0.5", "DFC_DEFAULT_COPIES": str(copies)}
    environment |= {"DFC_DOWN_AFTER_S": "8", "DFC_HOLD_S": "60"}  # a step waits for the sixth target, which is not there
    cluster: Cluster = start_cluster(targets=4, environment=environment)
    bodies = {f"grow/{number:03}.bin": b"%d" % number * 100 for number in range(120)}
    for name, body in bodies.items():
        put(f"{cluster.url}/{name}", body)
    assert cluster.stop() == 0
    cluster.targets = 6
    reader = Reader(cluster.start().url, bodies)
    reader.start()
    wait_for(lambda: is_settled(cluster, 6), "objects to be moved to the new targets")
    reader.end()
    for name in ("target-4", "target-5"):
        assert list((cluster.directory / name / "disk-0/objects").rglob("*.bin@*")), "it has its share"

    assert cluster.stop() == 0
    last = node_of(cluster, "target-5")
    said = refusal(cluster, "--targets", "5")
    assert f"may hold objects: target-5 ({last})" in said
    assert f"`dfc cluster drain {last} --wait`" in said
    assert "target-4 (" not in said
    reader = Reader(cluster.start().url, bodies)
    reader.start()
    ask(cluster, "PATCH", f"/v1/cluster/nodes/{last}", {"state": "draining"})
    wait_for(lambda: is_settled(cluster, 5), "objects to be moved away")
    reader.end()
    assert cluster.stop() == 0
    cluster.targets = 5
    cluster.start()
    assert set(cluster.children()) == {"proxy", *(f"target-{number}" for number in range(5))}
    assert {name: get(f"{cluster.url}/{name}") for name in bodies} == bodies
    wait_for(lambda: any(each["id"] == last and each["state"] == "down" for each in cluster.map()["nodes"]), "it to be down")
    ask(cluster, "DELETE", f"/v1/cluster/nodes/{last}")
    assert cluster.is_healthy()


def test_a_disk_of_each_target_is_left_out_when_it_was_drained(start_cluster) -> None:
    cluster: Cluster = start_cluster(targets=2, disks=2)
    put(f"{cluster.url}/keep/a.bin", b"kept" * 1000)
    drained = [json.loads((cluster.directory / f"target-{k}/disk-1/dfc-disk.json").read_text())["disk_id"] for k in (0, 1)]
    for disk in drained:
        ask(cluster, "PATCH", f"/v1/cluster/disks/{disk}", {"state": "draining"})
    wait_for(lambda: is_settled(cluster, 2), "objects to be moved away")
    assert cluster.stop() == 0
    cluster.disks = 1
    cluster.start()
    assert get(f"{cluster.url}/keep/a.bin") == b"kept" * 1000
    print(json.dumps(cluster.map(), indent=1))
    for disk in drained:
        ask(cluster, "DELETE", f"/v1/cluster/disks/{disk}")
    assert _states(cluster, drained) == set()


def _states(cluster: Cluster, disks: list[str]) -> set[str]:
    return {disk["state"] for node in cluster.map()["nodes"] for disk in node["disks"] if disk["id"] in disks}


def test_a_node_says_where_its_threads_are(cluster: Cluster) -> None:
    log = cluster.directory / "logs/target-0.log"
    before = log.stat().st_size
    os.kill(cluster.children()["target-0"], signal.SIGUSR1)
    wait_for(lambda: "(most recent call first)" in log.read_bytes()[before:].decode(), "the stacks of its threads")
    assert cluster.is_healthy()


def test_a_long_read_is_drained_at_the_end(start_cluster) -> None:
    cluster: Cluster = start_cluster(targets=2, environment={"DFC_DRAIN_TIMEOUT_S": "30"})
    body = os.urandom(1 << 20) * 64
    put(f"{cluster.url}/drain/big.bin", body)
    host, port = cluster.url.removeprefix("http://").split(":")
    for url in (cluster.url, *cluster.target_urls()):
        assert get(f"{url}/drain/big.bin") == body
    with socket.create_connection((host, int(port))) as reader:
        reader.sendall(b"GET /drain/big.bin HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = bytearray(reader.recv(1 << 16))
        stopping = threading.Thread(target=cluster.stop)
        stopping.start()
        wait_for(lambda: not accepts(host, int(port)), "the proxy to stop accepting")
        while piece := reader.recv(1 << 20):
            received += piece
        stopping.join()
    assert received.partition(b"\r\n\r\n")[2] == body
    assert cluster.process is not None
    assert cluster.process.returncode == 0


def test_copies_are_there_after_a_stop_that_waits_for_a_client(start_cluster) -> None:
    """The proxy is the coordinator until the client is cut off. If targets ended meanwhile, they were marked down one after the
    other, and none of the copies would count after the start."""
    environment = {"DFC_DEFAULT_COPIES": "2", "DFC_DRAIN_TIMEOUT_S": "2"}
    cluster: Cluster = start_cluster(targets=4, environment=environment)
    names = [f"copied/{number}.bin" for number in range(40)]
    for name in names:
        put(f"{cluster.url}/{name}", name.encode())
    put(f"{cluster.url}/copied/big.bin", bytes(64 << 20))
    host, port = cluster.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"GET /copied/big.bin HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert cluster.stop() == 0
    cluster.start()
    assert [get(f"{cluster.url}/{name}") for name in names] == [name.encode() for name in names]


def accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_children_end_when_the_supervisor_is_killed(pair: Cluster) -> None:
    cluster = pair
    children = cluster.children()
    assert set(children) == {"proxy", "target-0", "target-1"}
    assert cluster.process is not None
    cluster.process.kill()
    cluster.process.wait()
    wait_for(lambda: not any(map(is_running, children.values())), "the children to end")
    cluster.process.stdout.close()
    cluster.start()  # nothing of the old run holds the disks or ports
    assert cluster.is_healthy()


@pytest.mark.parametrize("name", ["proxy", "target-0"])
def test_a_child_that_is_killed_comes_back_where_it_was(pair: Cluster, name: str) -> None:
    cluster = pair
    before = sorted(cluster.target_urls())
    put(f"{cluster.url}/back/{name}.bin", b"x" * 100_000)
    os.kill(cluster.children()[name], signal.SIGKILL)
    wait_for(lambda: name in cluster.children() and cluster.is_healthy(), f"{name} to come back", 60)
    assert sorted(cluster.target_urls()) == before
    assert wait_for(lambda: try_get(f"{cluster.url}/back/{name}.bin"), "the object") == b"x" * 100_000


def test_a_port_that_is_taken_is_said_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "dfc", "serve", "--dir", str(tmp_path / "new"), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"port {port}: another program is using this port, choose another one with --port" in done.stderr
    assert not list(tmp_path.iterdir()), "a directory was made for a cluster that never was"


def test_an_open_host_without_a_token_is_said_loudly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dfc", "proxy", "--host", "0.0.0.0", "--port", "0", "--dir", str(tmp_path)]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert node.stdout is not None
    assert node.stderr is not None
    assert '"ready": true' in node.stdout.readline()
    node.terminate()
    _, errors = node.communicate(timeout=30)
    assert "WITHOUT A TOKEN" in errors
    assert node.returncode == 0


def test_an_advertised_name_need_not_be_known_here(start_cluster) -> None:
    """Nodes of one machine reach each other by its own addresses; the advertised ones are for clients elsewhere."""
    cluster: Cluster = start_cluster(targets=1, environment={"DFC_ADVERTISE_URL": "http://dfc.example.invalid:80"})
    assert cluster.url == "http://dfc.example.invalid:80"
    assert set(cluster.children()) == {"proxy", "target-0"}
    assert cluster.stop() == 0
