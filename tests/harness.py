"""What tests stand on: real clusters in real processes on free ports, and waiting for what can be asked."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from nodelogs import LOGS

from dfc.placement.map import ClusterMap, Owner

START_TIMEOUT_S = 60.0
STARTING_MAX = max(1, len(os.sched_getaffinity(0)))  # clusters, at a time
RUNNING: list[Cluster] = []  # those of this process that were not stopped yet
# A tenth of a node's start is to load the certificates of the web, which no node of a test asks for.
QUICK = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
# On a busy machine a node may be silent for the usual 4 s, and is not dead for that; tests in which one is have them back.
PATIENT = {"DFC_DOWN_AFTER_S": "30", "DFC_DRAIN_TIMEOUT_S": "5"}
IMPATIENT = {"DFC_DOWN_AFTER_S": "4"}
DATA = Path(__file__).parent / "data"


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """Ask until the answer is true; fail the test naming `what` after the timeout."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)  # between two questions; nothing is assumed to have happened by then
    raise AssertionError(f"waited {timeout_s} s in vain for {what}")


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other tasks and threads do. TimeoutError."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # it sets no event
            await asyncio.sleep(0.002)


def owner_of(cluster_map: ClusterMap, bucket: str, name: str) -> Owner:
    """The disk and node that hold an object of a bucket that the map knows."""
    entry = cluster_map.bucket(bucket)
    assert entry is not None, f"the map has no bucket {bucket!r}"
    owner = cluster_map.owner(entry, name)
    assert owner is not None
    return owner


@contextmanager
def starting() -> Iterator[None]:
    """While a cluster starts: so many at a time, of all processes that run tests. One that starts takes seconds of processor
    time, and beside four of them the nodes of others are silent for as long. A process that ends gives its turn back."""
    slots = [Path(tempfile.gettempdir(), f"dfc-tests-starting-{os.getuid()}-{number}") for number in range(STARTING_MAX)]
    with ExitStack() as stack:
        files = [stack.enter_context(open(slot, "wb")) for slot in slots]
        deadline = time.monotonic() + START_TIMEOUT_S  # whoever takes longer waits for something else
        while time.monotonic() < deadline and not any(map(_is_ours, files)):
            time.sleep(0.05)
        yield


def _is_ours(file: IO[bytes]) -> bool:
    """Whether a lock can be had; it lasts until the file is closed."""
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


class Cluster:
    """A `dfc serve` process and what tests ask of it."""

    def __init__(self, directory: Path, targets: int, disks: int, environment: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.targets = targets
        self.disks = disks
        self.environment = environment or {}
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.ending = False
        LOGS.add(directory)

    def start(self, port: int = 0) -> Cluster:
        """Start and wait for the ready line."""
        command = [sys.executable, "-m", "dfc", "serve", "--dir", str(self.directory), "--port", str(port)]
        command += ["--targets", str(self.targets), "--disks", str(self.disks)]
        self.ending = False
        if self not in RUNNING:
            RUNNING.append(self)
        with starting():
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **QUICK, **PATIENT, **self.environment},
            )
            assert self.process.stdout is not None
            said = []
            for line in self.process.stdout:
                said.append(line)
                if line.startswith("DFC is ready at "):
                    self.url = line.split()[4]
                    return self
        raise AssertionError(f"the cluster did not start: {''.join(said)}")

    def end(self) -> None:
        """Let it end beside what follows; `stop` waits for it."""
        if self.process is not None and self.process.poll() is None and not self.ending:
            self.ending = True
            self.process.send_signal(signal.SIGTERM)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 40.0) -> int:
        """End it; the exit status."""
        assert self.process is not None
        if self.process.poll() is None and not self.ending:  # a second signal would kill its nodes
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
            if self in RUNNING:
                RUNNING.remove(self)

    def map(self) -> dict[str, Any]:
        """The cluster map."""
        with urllib.request.urlopen(f"{self.url}/v1/cluster", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def bucket_id(self, name: str) -> str:
        """The id of a bucket that exists."""
        return next(bucket["id"] for bucket in self.map()["buckets"] if bucket["name"] == name)

    def children(self) -> dict[str, int]:
        """Process ids of the nodes by name: `proxy`, `target-0`, …"""
        assert self.process is not None
        found = {}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            with suppress(OSError):  # it has ended meanwhile
                arguments = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
                if "--dir" in arguments:
                    found[Path(arguments[arguments.index("--dir") + 1]).name] = int(child)
        return found

    def pids(self) -> list[int]:
        """Of the nodes; none when it has ended, whoever has waited for it."""
        with suppress(OSError):
            return list(self.children().values()) if self.process else []
        return []

    def target_urls(self) -> list[str]:
        """The URLs of the targets, ordered by node id."""
        return [node["advertise_url"] for node in self.map()["nodes"] if node["role"] == "target"]

    def has_swept(self) -> bool:
        """Whether the proxy has looked for staged objects of jobs that it does not know, as it does once after its start (and
        then not for an hour): from then on a test can stage something for a job that it has made up."""
        return any("no target holds staged objects" in path.read_text() for path in self.directory.glob("logs/proxy*.log"))

    def is_healthy(self) -> bool:
        """Whether the proxy answers and sees all targets up, and they answer too: for one that was killed it takes a while to
        see."""
        try:
            nodes = self.map()["nodes"]
            for node in nodes:
                with urllib.request.urlopen(f"{node['advertise_url']}/v1/health", timeout=10):
                    pass
        except OSError:
            return False
        return len(nodes) == self.targets and all(node["state"] == "up" for node in nodes)


@contextmanager
def running(threads: Sequence[threading.Thread], stopping: threading.Event) -> Iterator[None]:
    """While threads work; at the end they are told to stop, and waited for, whatever happens."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def run_dfc(url: str, *arguments: object, timeout_s: float | None = 120.0, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run `dfc` with a cluster as DFC_URL, to its end; `more` is for `subprocess.run`."""
    command = [sys.executable, "-m", "dfc", *map(str, arguments)]
    environment = {**os.environ, "DFC_URL": url}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout_s, **more)


def get(url: str, timeout_s: float = 30.0) -> bytes:
    """The body of an answer."""
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        found: bytes = answer.read()
        return found


def try_get(url: str) -> bytes | None:
    """The body of an answer; None for an error, or when nobody answers."""
    try:
        return get(url)
    except OSError:  # HTTPError is one, too
        return None


def put(url: str, body: bytes) -> None:
    """Upload an object."""
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method="PUT"), timeout=30) as answer:
        assert answer.status in (200, 201)


def is_running(pid: int) -> bool:
    """Whether a process runs: one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def go_on_without(worker: int | None, batches: Iterable[Any]) -> None:
    """Kill a loader's worker and ask for the rest of the batches. PyTorch tells of it from its handler of SIGCHLD, so the error
    may come between the two, too."""
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    for _ in batches:
        pass


def was_interrupted(status: int | None) -> bool:
    """Whether a program ended as after a Ctrl-C: with 130, or by the signal itself, which a shell shows as 130, too. So ends
    `python -m`, whatever the program returns, when the signal came while a string was evaluated, as namedtuple does it."""
    return status in (130, -signal.SIGINT)


def open_files(pid: int) -> list[str]:
    """What a process has open: paths, `socket:[…]`, `pipe:[…]`. Without what it closes meanwhile."""
    found = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return found


def own_files() -> int:
    """How many files this process has open: without sockets, which threads of earlier tests may close at any moment."""
    return sum(name.startswith("/") for name in open_files(os.getpid()))


def command_line(pid: int) -> str:
    """What a process was started as; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def parent(pid: int) -> int:
    """The process that a process belongs to; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
