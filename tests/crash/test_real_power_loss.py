"""Real nodes on a real file system that loses power, their own state on it too: every start works, nothing is lost.

A cluster (`dfc serve`: a proxy and two targets, all they keep on one ext4) takes uploads, overwrites and deletes from four
writers. At a random moment, now and then within the very first start, the file system stops writing and the processes are
killed. Then the journal is replayed and the cluster started again. POWER_LOSSES sets how often, POWER_LOSS_SEED what chance.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from harness import Cluster
from job_shards import tar_of
from losable_disk import FLUSH_ALL, FLUSH_JOURNAL, FLUSH_NOTHING, LosableDisk, losable_disk, why_not

LOSSES = int(os.environ.get("POWER_LOSSES", "40"))
SEED = int(os.environ.get("POWER_LOSS_SEED", "1"))
WRITERS = 4
NAMES_A_WRITER = 60
FRESH_EVERY = 4  # so many losses does a cluster live through before another is begun
JOB_EVERY = 10
TIMEOUT_S = 20.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(120 + 60 * LOSSES),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be had"),
]


def content(name: str, number: int) -> bytes:
    """What the `number`-th upload of a name has: anything from nothing to a megabyte; some are archives."""
    chance = random.Random(f"{name} {number}")
    data = chance.randbytes(chance.choice((0, 1, 700, 5_000, 40_000, 40_000, 300_000, 1_000_000)))
    if not name.endswith(".tar"):
        return data
    return tar_of([(f"{member:04d}.bin", data) for member in range(1 + number % 5)])


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@dataclass
class Known:
    """What one object may be: what was acknowledged last (None: nothing is there), or what was begun after it."""

    acknowledged: str | None = None
    begun: set[str | None] = field(default_factory=set)
    history: list[str] = field(default_factory=list)


class Writer(threading.Thread):
    """Uploads, overwrites and deletes its own names until the power is gone."""

    def __init__(self, url: str, number: int, known: dict[str, Known], seed: str, is_lost: threading.Event) -> None:
        super().__init__(name=f"writer-{number}")
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=TIMEOUT_S)
        self._names = [f"/power/{number}/{name:03d}{'.tar' if name % 10 == 0 else ''}" for name in range(NAMES_A_WRITER)]
        self._known = known
        self._chance = random.Random(f"{seed} {number}")
        self._is_lost = is_lost
        self.acknowledged = self.late = 0
        self.strange: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        with closing(self._connection):
            self._write()

    def _write(self) -> None:
        while not self.stop.is_set():
            name = self._chance.choice(self._names)
            entry = self._known.setdefault(name, Known())
            is_delete = self._chance.random() < 0.1 and entry.acknowledged is not None
            data = b"" if is_delete else content(name, self._chance.randrange(1 << 30))
            new = None if is_delete else digest(data)
            entry.begun.add(new)
            try:
                self._connection.request("DELETE" if is_delete else "PUT", name, body=None if is_delete else data)
                answer = self._connection.getresponse()
                said = answer.read()
            except (OSError, http.client.HTTPException):
                return  # whatever became of it
            entry.history.append(f"{'DELETE' if is_delete else 'PUT'} {new} {answer.status} at {time.monotonic():.3f}")
            if self._is_lost.is_set():
                self.late += 1
                return  # a machine without power would have said nothing; ext4's shutdown does not stop an fsync under way
            if answer.status in (200, 201, 204):
                entry.acknowledged, entry.begun = new, set()
                self.acknowledged += 1
            elif answer.status < 500:
                self.strange.append(f"{answer.status} {said[:200]!r}")
                return
            else:
                return  # it may still be carried out: the name must be left alone


@dataclass
class Lab:
    """One file system after another, and what was acknowledged on it."""

    disk: LosableDisk
    chance: random.Random
    known: dict[str, Known] = field(default_factory=dict)
    buckets: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    figures: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    is_lost: threading.Event = field(default_factory=threading.Event)

    def begin_anew(self) -> None:
        self.disk.make()
        self.known, self.buckets, self.jobs = {}, set(), set()

    def cluster(self) -> Cluster:
        return Cluster(self.disk.root / "data", targets=2, disks=1)

    def lose_power(self, cluster: Cluster) -> None:
        """The file system goes first, the processes a moment later: what they say in between no longer counts."""
        self.is_lost.set()
        flush = self.chance.choices((FLUSH_NOTHING, FLUSH_JOURNAL, FLUSH_ALL), (8, 1, 1))[0]
        self.history(f"power lost ({flush}) at {time.monotonic():.3f}")
        self.disk.lose_power(flush)
        time.sleep(self.chance.random() * 0.05)  # how long a machine lives on is chance; nothing waits for it
        self.kill(cluster)

    def kill(self, cluster: Cluster) -> None:
        """The supervisor first, so that it starts nothing again; whoever is left by then has something open on the disk."""
        assert cluster.process is not None
        children: dict[str, int] = {}
        with suppress(OSError):
            children = cluster.children()
        cluster.process.kill()
        cluster.process.wait()
        for pid in children.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.disk.end_users()

    def history(self, what: str) -> None:
        for entry in list(self.known.values()):
            entry.history.append(what)

    def come_back(self) -> None:
        self.is_lost.clear()
        self.disk.unmount()
        self.disk.mount()
        self.figures["losses"] += 1

    # --- what a machine does between two losses

    def lose_in_the_first_start(self) -> None:
        """Between the first process and a little after the ready line. What is acknowledged by then counts."""
        cluster = self.cluster()
        lost = threading.Event()

        def lose() -> None:
            lost.set()
            self.lose_power(cluster)

        timer = threading.Timer(self.chance.uniform(0.2, 5.0), lose)
        timer.start()
        writers: list[Writer] = []
        try:
            cluster.start()
            writers = self.start_writers(cluster)
        except (AssertionError, OSError, http.client.HTTPException):
            timer.join()
            assert lost.is_set(), "the first start failed although there was power"
            self.figures["lost in a first start"] += 1
        finally:
            timer.join()
            self.join(writers)
            assert cluster.process is not None
            assert cluster.process.stdout is not None
            cluster.process.stdout.close()

    def live(self, round_: int) -> None:
        """Start, look at everything that was acknowledged, go on writing, lose power."""
        cluster = self.cluster()
        begun = time.monotonic()
        try:
            cluster.start()
            self.figures["starts"] += 1
            self.figures["start ms"] += int((time.monotonic() - begun) * 1000)
            self.verify(cluster.url)
            self.create_bucket(cluster.url, f"bucket-{round_}")
            writers = self.start_writers(cluster)
            if round_ % JOB_EVERY == 0:
                self.submit_job(cluster.url)
            time.sleep(self.chance.uniform(0.1, 1.5))  # the moment is what is drawn by lot
            self.lose_power(cluster)
            self.join(writers)
        finally:
            self.kill(cluster)
            assert cluster.process is not None
            assert cluster.process.stdout is not None
            cluster.process.stdout.close()

    def start_writers(self, cluster: Cluster) -> list[Writer]:
        seed = str(self.chance.random())
        writers = [Writer(cluster.url, number, self.known, seed, self.is_lost) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        return writers

    def join(self, writers: list[Writer]) -> None:
        for writer in writers:
            writer.stop.set()
            writer.join()
            self.figures["acknowledged"] += writer.acknowledged
            self.figures["answered too late to count"] += writer.late
            self.problems += writer.strange

    def create_bucket(self, url: str, name: str) -> None:
        status, _ = ask(url, "PUT", f"/v1/buckets/{name}")
        assert status in (200, 201), f"{name}: {status}"
        self.buckets.add(name)

    def submit_job(self, url: str) -> None:
        spec = {
            "operation": "reshard",
            "input": {"bucket": "power", "shards": "**.tar"},
            "output": {"bucket": "out", "pattern": f"{len(self.jobs)}-%04d.tar", "samples_per_shard": 5},
        }
        status, said = ask(url, "POST", "/v1/jobs", json.dumps(spec).encode())
        if status == 202:  # else there is no shard yet
            self.jobs.add(json.loads(said)["id"])
            self.figures["jobs"] += 1

    def verify(self, url: str) -> None:
        """Everything acknowledged is there with its bytes; what was not may be either. What is found counts from now on."""
        address = urlsplit(url)
        with closing(http.client.HTTPConnection(str(address.hostname), address.port, timeout=TIMEOUT_S)) as connection:
            self.verify_objects(connection)
        listed = {bucket["name"] for bucket in json.loads(ask(url, "GET", "/v1/buckets")[1])["buckets"]}
        if self.buckets - listed:
            self.problems.append(f"buckets are gone: {sorted(self.buckets - listed)}")
        for job in self.jobs:
            if ask(url, "GET", f"/v1/jobs/{job}")[0] != 200:
                self.problems.append(f"the job {job} is gone")

    def verify_objects(self, connection: http.client.HTTPConnection) -> None:
        for name, entry in list(self.known.items()):
            connection.request("GET", name)
            answer = connection.getresponse()
            data = answer.read()
            found = {200: digest(data), 404: None}.get(answer.status, f"{answer.status} {data[:200]!r}")
            if found not in {entry.acknowledged, *entry.begun}:
                self.problems.append(f"{name} is {found}, may be {entry.acknowledged} or {entry.begun}: {entry.history}")
                self.figures["lost"] += 1
            entry.acknowledged, entry.begun = found, set()
            entry.history.append(f"found {found}")
            self.figures["verified"] += 1


def ask(url: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    address = urlsplit(url)
    with closing(http.client.HTTPConnection(str(address.hostname), address.port, timeout=TIMEOUT_S)) as connection:
        connection.request(method, path, body=body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_every_start_works_and_nothing_acknowledged_is_lost() -> None:
    # In memory: what counts is what ext4 has handed on, not what becomes of it then.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        with losable_disk(Path(directory)) as disk:
            lab = Lab(disk, random.Random(SEED))
            begun = time.monotonic()
            for round_ in range(LOSSES):
                try:
                    if round_ % FRESH_EVERY == 0:
                        lab.begin_anew()
                        lab.lose_in_the_first_start()
                    else:
                        lab.live(round_)
                    lab.come_back()
                except (AssertionError, OSError) as error:
                    raise AssertionError(f"loss {round_} of seed {SEED}: {error}; {dict(lab.figures)}") from error
                assert not lab.problems, f"loss {round_} of seed {SEED}: {lab.problems[:5]}"
            cluster = lab.cluster()
            try:
                cluster.start()
                lab.verify(cluster.url)
            finally:
                lab.kill(cluster)
                assert cluster.process is not None
                assert cluster.process.stdout is not None
                cluster.process.stdout.close()
            print(f"{dict(lab.figures)} in {time.monotonic() - begun:.0f} s")
            assert not lab.problems, lab.problems[:5]
            assert lab.figures["losses"] == LOSSES
            assert lab.figures["acknowledged"] > LOSSES, "the writers hardly wrote"
