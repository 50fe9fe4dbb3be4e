"""A disk was taken out, and comes back with what it had, when tombstones of what has changed meanwhile are purged everywhere:
nothing old is seen, and in the end it holds what it should. Real processes; tombstones are kept for a second."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from cluster.test_lost import Bucket
from failures.kills import check_replicas
from failures.losses import disks_of, is_back, is_healed
from failures.nodes import Nodes

COUNT = 60
KEEP_S = 1.0
OLD = "target-1"


@contextmanager
def running(directory: Path, out_after_s: float) -> Iterator[Nodes]:
    settings = {"down_after_s": 3, "out_after_s": out_after_s, "hold_s": 10, "drain_timeout_s": 2}
    with Nodes(directory, 3, 2, forget_s=KEEP_S, **settings) as nodes:
        nodes.start_all()
        yield nodes
        nodes.stop_all()


class Looker(threading.Thread):
    """Reads and lists all the time, and keeps what is wrong."""

    def __init__(self, *buckets: Bucket) -> None:
        super().__init__(daemon=True)
        self.stopping, self.problems, self.rounds, self.buckets = threading.Event(), list[str](), 0, buckets

    def run(self) -> None:
        while not self.stopping.is_set():
            for bucket in self.buckets:
                try:
                    bucket.read()
                    found = bucket.list()
                except AssertionError as error:
                    self.problems.append(str(error))
                    continue
                if found not in (names_of(bucket), 503):
                    self.problems.append(f"the listing is {found}")
            self.rounds += 1


def names_of(bucket: Bucket) -> list[str]:
    return sorted(name for name, body in bucket.wanted.items() if body is not None)


def take_out(nodes: Nodes) -> Path:
    """Restart a target without one of its disks."""
    disk = nodes.disks_of(OLD)[0]
    nodes.kill(OLD, signal.SIGTERM)
    nodes.left_out.add(disk)
    nodes.start(OLD)
    nodes.until(lambda: nodes.is_serving([OLD]), "the target to be back without a disk")
    nodes.until(lambda: sum(bool(each["down_step"]) for each in disks_of(nodes, OLD)) == 1, "its other disk to be in use")
    return disk


def change(bucket: Bucket) -> None:
    """A third is deleted, and a third overwritten."""
    for number in range(0, COUNT, 3):
        bucket.delete(f"o{number:02}")
        bucket.put(f"o{number + 1:02}", b"new %d" % number)


def make_anew(nodes: Nodes, bucket: Bucket) -> None:
    """Delete a bucket, and create one of the same name with some objects of the same names."""
    answer = bucket.http.delete(f"{nodes.url}/v1/buckets/{bucket.name}?force=1")
    assert answer.status_code == 204, answer.text
    nodes.ask(f"/v1/buckets/{bucket.name}", "PUT", b'{"copies": 2}')
    for name in bucket.wanted:
        bucket.wanted[name] = None
    for number in range(0, COUNT, 4):
        bucket.put(f"o{number:02}", b"anew %d" % number)


def filled(nodes: Nodes, http: httpx.Client, name: str) -> Bucket:
    bucket = Bucket(nodes, http, name, 2)
    for number in range(COUNT):
        bucket.put(f"o{number:02}", b"old %d" % number)
    return bucket


def tombstones(nodes: Nodes, without: Path) -> int:
    """How many there are on disks that are not away."""
    disks = [disk for name in nodes.targets for disk in nodes.disks_of(name)]
    return sum(count for disk, count in zip(disks, nodes.count("tombstones"), strict=True) if disk != without)


def put_back(nodes: Nodes, *buckets: Bucket) -> None:
    """Restart the target with all its disks, and look at everything until all is calm."""
    looker = Looker(*buckets)
    looker.start()
    nodes.kill(OLD, signal.SIGTERM)
    nodes.left_out.clear()
    nodes.start(OLD)
    nodes.until(lambda: nodes.is_serving([OLD]) and is_back(nodes), "it to get objects again")
    nodes.until_calm(60)
    looker.stopping.set()
    looker.join(120)
    assert looker.problems == []
    assert looker.rounds > 0


def check(nodes: Nodes, old: Path, old_id: str, *buckets: Bucket) -> None:
    """Everything is as it should be, on each disk."""
    for bucket in buckets:
        left = len(names_of(bucket))
        assert bucket.read() == {200: left, 404: len(bucket.wanted) - left}
        assert bucket.list() == names_of(bucket)
        bucket_id = nodes.bucket_id(bucket.name)
        nodes.until(
            lambda bucket_id=bucket_id: not check_replicas(nodes, 2, bucket_id), "objects to be at their replicas alone"
        )
        held = {row.name for row in nodes.rows() if row.bucket_id == bucket_id and row.disk == f"{OLD}/{old.name}"}
        assert held <= set(names_of(bucket))
    assert [row for row in nodes.rows() if row.disk == f"{OLD}/{old.name}"], "it has its share again"
    nodes.until(lambda: old_id not in {row.bucket_id for row in nodes.rows()}, "rows of the bucket of before to go")
    nodes.until(lambda: not list((old / "objects").glob(f"{old_id}*/**/*@*")), "their bytes to go")
    nodes.until(lambda: not any(nodes.count("tombstones")), "all tombstones to be purged")


def test_one_that_was_evicted(tmp_path: Path) -> None:
    with running(tmp_path, out_after_s=1) as nodes, httpx.Client(timeout=60, follow_redirects=True) as http:
        two, anew = filled(nodes, http, "two"), filled(nodes, http, "anew")
        old_id = nodes.bucket_id("anew")
        old = take_out(nodes)
        nodes.until(lambda: is_healed(nodes, OLD), "objects to get other replicas")
        # Deletes do not go to handoff replicas of before, and no replica remembers them for longer than a second here.
        nodes.until(lambda: not nodes.handoffs(), "surplus rows to go")
        change(two)
        make_anew(nodes, anew)
        nodes.until(lambda: tombstones(nodes, without=old) == 0, "tombstones to be purged")
        ids = {(row.bucket_id, row.name) for row in nodes.rows() if row.disk == f"{OLD}/{old.name}"}
        assert any(bucket_id == old_id for bucket_id, _ in ids), "the disk that is away has objects of the bucket of before"
        assert any(two.wanted[name] is None for bucket_id, name in ids if bucket_id != old_id), "and some that were deleted"
        put_back(nodes, two, anew)
        check(nodes, old, old_id, two, anew)


def test_one_that_was_not(tmp_path: Path) -> None:
    """Then tombstones are kept as long as it is away."""
    with running(tmp_path, out_after_s=600) as nodes, httpx.Client(timeout=60, follow_redirects=True) as http:
        two, anew = filled(nodes, http, "two"), filled(nodes, http, "anew")
        old_id = nodes.bucket_id("anew")
        old = take_out(nodes)
        change(two)
        make_anew(nodes, anew)
        kept = Looker(two, anew)
        kept.start()
        kept.stopping.wait(5 * KEEP_S)  # disks look for old tombstones several times
        kept.stopping.set()
        kept.join(120)
        assert kept.problems == []
        assert tombstones(nodes, without=old) >= COUNT // 3
        put_back(nodes, two, anew)
        check(nodes, old, old_id, two, anew)
