"""What a task on a worker sees of a real cluster: shards by file and over HTTP, outputs at their owners, the end of a job."""

from __future__ import annotations

import errno
import http.server
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import Cluster, wait_for
from job_shards import tar_of

import dfc.engine.worker.reading
import dfc.engine.worker.store
import dfc.engine.worker.writing
from dfc.checksum import checksum_of
from dfc.client import RetryPolicy
from dfc.engine.base import WorkerSettings
from dfc.engine.worker.store import JobStore, Workshop
from dfc.engine.worker.writing import Deposit
from dfc.errors import DfcError, JobCancelled, LengthMismatch, NoSpace, ObjectCorrupt, StorageFailed
from dfc.jobs.store import InputChanged
from dfc.jobs.tasks import InputShard, Task, decode_blocks
from dfc.tar.index.reader import ShardIndex

JOB = "job-1"


def shard_of(samples: int, size: int, seed: int = 0) -> bytes:
    dice = random.Random(seed)
    return tar_of([(f"s{number:05d}.bin", dice.randbytes(size)) for number in range(samples)])


def call(method: str, url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method), timeout=60) as answer:
        content: bytes = answer.read()
        return content


class JobsProxy:
    """A proxy whose job runs until `ended`; the map is that of the real one."""

    def __init__(self, cluster: Cluster) -> None:
        self.ended = False
        self.asked = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/v1/cluster":
                    status, body = 200, call("GET", f"{cluster.url}/v1/cluster")
                else:
                    assert self.path.startswith("/v1/node/jobs/")
                    outer.asked += 1
                    status, body = (409, b"{}") if outer.ended else (200, b"{}")
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def unfinished(setting: Setting) -> list[Path]:
    """Files of outputs that are under way, on all disks."""
    found = [*setting.cluster.directory.glob("*/**/temporary/deposit-*")]
    for path in setting.cluster.directory.glob("*/**/objects/**/*@*"):
        with suppress(FileNotFoundError):
            if not path.name.endswith(".idx") and not path.read_bytes().endswith(b"DFC-BLOB"):
                found.append(path)
    return found


class Setting:
    """A cluster, a job on it and a worker's store for one of its tasks."""

    def __init__(self, cluster: Cluster, proxy: JobsProxy, store: JobStore) -> None:
        self.cluster = cluster
        self.proxy = proxy
        self.store = store

    def put(self, name: str, content: bytes, bucket: str = "in") -> InputShard:
        """Upload a shard; it as a job sees it."""
        call("PUT", f"{self.cluster.url}/{bucket}/{name}", content)
        for url in self.cluster.target_urls():
            body = call("GET", f"{url}/v1/node/shards?bucket={bucket}&shards={name}")
            for block in decode_blocks(body):
                return block[0]
        raise AssertionError("no target has it")

    def staged(self) -> dict[str, int]:
        """Objects that jobs have staged, over all targets."""
        found: dict[str, int] = {}
        for url in self.cluster.target_urls():
            for job, total in msgspec.json.decode(call("GET", f"{url}/v1/node/staged")).items():
                found[job] = found.get(job, 0) + total["objects"]
        return found


@pytest.fixture(scope="module")
def nodes(start_cluster: Callable[..., Cluster]) -> Cluster:
    cluster = start_cluster(targets=2, disks=1)
    call("PUT", f"{cluster.url}/v1/buckets/out")  # as when a job is accepted
    wait_for(cluster.has_swept, "the proxy to have swept")  # it does not know the jobs of these tests
    return cluster


@pytest.fixture
def setting(nodes: Cluster, request: pytest.FixtureRequest) -> Iterator[Setting]:
    proxy = JobsProxy(nodes)
    job = f"{JOB}-{abs(hash(request.node.name)) % 10**9}"
    workshop = Workshop(WorkerSettings(proxy_url=proxy.url))
    with workshop.store(Task(job, "none.at_all", 0, "l", b"", "out", nodes.bucket_id("out"))) as store:
        yield Setting(nodes, proxy, store)
    workshop.close()
    for url in nodes.target_urls():
        call("DELETE", f"{url}/v1/node/staged/{job}")
    proxy.close()


@pytest.fixture(params=["file", "http"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the disks of the targets are those of this machine."""
    if request.param == "http":
        monkeypatch.setattr(dfc.engine.worker.writing, "is_here", lambda site, boot: False)
        monkeypatch.setattr(dfc.engine.worker.reading, "open_blob", lambda path: None)
        monkeypatch.setattr(
            dfc.engine.worker.reading.ShardIndex, "open", _only_descriptors(dfc.engine.worker.reading.ShardIndex.open)
        )
    return str(request.param)


def _only_descriptors(opened: Callable[..., Any]) -> Any:
    def open_it(path_or_fd: Any, *options: Any) -> Any:
        if isinstance(path_or_fd, str):
            raise FileNotFoundError(path_or_fd)
        return opened(path_or_fd, *options)

    return staticmethod(open_it)


def test_every_way_to_read_gives_the_stored_bytes(setting, way):
    content = shard_of(300, 5000)
    shard = setting.put(f"read-{way}.tar", content)
    source = setting.store.open(shard)
    assert source.size == len(content)
    assert (source.file() is not None) == (way == "file")
    if (descriptor := source.file()) is not None:
        assert os.pread(descriptor, 100, 1000) == content[1000:1100]
    buffer = bytearray(70_000)
    source.read_into(12_345, memoryview(buffer))
    assert buffer == content[12_345 : 12_345 + 70_000]
    source.read_into(len(content), memoryview(bytearray()))
    with source.open() as stream:
        assert stream.read(1234) == content[:1234]
        assert stream.read() == content[1234:]
    with pytest.raises(ObjectCorrupt):
        source.read_into(len(content) - 10, memoryview(bytearray(11)))
    source.close()


@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_ranges_come_in_the_order_asked_for(setting, way, count):
    content = shard_of(300, 5000)
    shard = setting.put(f"ranges-{way}.tar", content)
    dice = random.Random(count)
    ranges = [(dice.randrange(len(content) - 5000), dice.randrange(1, 5000)) for _ in range(count)]
    ranges += [(1000, 24), (1024, 76), (1100, 1)]  # neighbours
    expected = b"".join(content[offset : offset + size] for offset, size in ranges)
    buffer = memoryview(bytearray(len(expected)))
    source = setting.store.open(shard)
    source.read_ranges(ranges, buffer)
    assert buffer == expected
    with pytest.raises(ValueError):
        source.read_ranges(ranges, buffer[:-1])


def test_indexes_are_the_shards_own_and_kept(setting, way):
    shard = setting.put(f"index-{way}.tar", shard_of(50, 100))
    index = setting.store.index(shard)
    assert index.sample_count == 50
    assert index.sample_at(7).key == "s00007"
    assert setting.store.index(shard) is index


def test_a_replaced_shard_is_noticed(setting, way):
    shard = setting.put(f"changed-{way}.tar", shard_of(10, 100))
    setting.put(shard.name, shard_of(10, 100, seed=1))
    with pytest.raises(InputChanged):
        setting.store.open(shard).read_into(0, memoryview(bytearray(10)))
    with pytest.raises(InputChanged):
        setting.store.index(shard)
    gone = setting.put(f"gone-{way}.tar", shard_of(10, 100))
    call("DELETE", f"{setting.cluster.url}/in/{gone.name}")
    with pytest.raises(InputChanged):
        setting.store.open(gone).read_into(0, memoryview(bytearray(10)))


def test_a_shard_replaced_while_ranges_are_read_remotely(setting, monkeypatch):
    monkeypatch.setattr(dfc.engine.worker.reading, "open_blob", lambda path: None)
    shard = setting.put("batched.tar", shard_of(100, 1000))
    source = setting.store.open(shard)
    setting.put("batched.tar", shard_of(100, 1000, seed=2))
    with pytest.raises(InputChanged):
        source.read_ranges([(offset, 10) for offset in range(0, 10_000, 100)], memoryview(bytearray(1000)))


SIZES = [0, 1, 100_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("announced", [True, False])
def test_outputs_are_staged_whole(setting, way, size, announced):
    content = random.Random(size).randbytes(size)
    name = f"dir/a b-{size}-{announced}-{way}.bin"
    output = setting.store.create_temporary(name, size if announced else None)
    dice, at = random.Random(1), 0
    while at < size:
        step = dice.choice((1, 512, 10_000, 300_000))
        output.write(content[at : at + step])
        at += step
    written = output.commit()
    assert (written.size, written.checksum) == (size, checksum_of(content))
    source = setting.store.open_temporary(name)
    assert source.size == size
    if size:
        buffer = memoryview(bytearray(size))
        source.read_into(0, buffer)
        assert buffer == content
        with source.open() as stream:
            assert stream.read() == content


def test_files_are_sent_between_written_bytes(setting, way, tmp_path):
    content = random.Random(5).randbytes(3_000_000)
    (tmp_path / "file").write_bytes(content)
    for announced in (None, 10 + 2_000_000 + 5 + 1_000_000):
        with open(tmp_path / "file", "rb") as file:
            output = setting.store.create(f"sent-{announced}-{way}.bin", announced)
            assert output.sends == (way == "http")
            output.write(b"0123456789")
            output.send([(b"", file.fileno(), 0, 2_000_000)])
            output.send([(b"---", file.fileno(), 2_000_000, 400_000), (b"--", file.fileno(), 2_400_000, 600_000)])
            expected = b"0123456789" + content[:2_000_000] + b"---" + content[2_000_000:2_400_000] + b"--"
            expected += content[2_400_000:]
            assert output.commit().checksum == checksum_of(expected)
    output = setting.store.create("short.bin")
    with open(tmp_path / "file", "rb") as file, pytest.raises(DfcError):
        output.send([(b"", file.fileno(), 2_999_999, 2)])


def test_a_length_that_was_announced_is_held_to(setting, way):
    output = setting.store.create("long.bin", 10)
    with pytest.raises(LengthMismatch):
        output.write(b"x" * 11)
    output = setting.store.create("short.bin", 2_000_000)
    output.write(b"x" * 1_500_000)
    with pytest.raises(LengthMismatch):
        output.commit()
    assert setting.staged().get(setting.store._task.job, 0) == 0


def test_what_is_not_committed_leaves_nothing(setting, way):
    aborted = setting.store.create("aborted.bin")
    aborted.write(b"x" * 3_000_000)
    aborted.abort()
    aborted.abort()
    with pytest.raises(ValueError):
        aborted.write(b"x")
    left = setting.store.create("left.tar")
    left.write(b"x" * 3_000_000)
    assert isinstance(left._upload, Deposit) == (way == "file")
    setting.store.close()
    wait_for(lambda: not unfinished(setting), "the targets to remove what was broken off")
    kept = setting.store.create("kept.bin")
    kept.write(b"x")
    kept.commit()
    kept.abort()
    assert setting.staged()[setting.store._task.job] == 1


def test_a_cancelled_job_ends_its_tasks(setting, monkeypatch):
    shard = setting.put("cancelled.tar", shard_of(10, 100))
    monkeypatch.setattr(dfc.engine.worker.store, "CHECK_S", 1000.0)
    setting.store.open(shard)
    assert setting.proxy.asked == 1, "at most one question in that time"
    setting.proxy.ended = True
    setting.store.open(shard)
    monkeypatch.setattr(dfc.engine.worker.store, "CHECK_S", 0.0)
    for use in (setting.store.check, lambda: setting.store.open(shard), lambda: setting.store.create("x")):
        with pytest.raises(JobCancelled):
            use()


def test_a_discarded_job_can_write_nothing_more(setting, way):
    running = setting.store.create("running.bin")
    running.write(b"x" * 2_000_000)
    for url in setting.cluster.target_urls():
        call("DELETE", f"{url}/v1/node/staged/{setting.store._task.job}")
    with pytest.raises(JobCancelled):
        running.commit()
    late = setting.store.create("late.bin")
    with pytest.raises(JobCancelled):
        late.write(b"x" * 2_000_000)
    small = setting.store.create("small.bin")
    small.write(b"x")
    with pytest.raises(JobCancelled):
        small.commit()
    assert setting.staged().get(setting.store._task.job, 0) == 0
    wait_for(lambda: not unfinished(setting), "nothing of them to be left")


# --- outputs that the worker writes to the disk of a target of its machine


def test_a_shard_is_deposited_with_its_index(setting):
    content, name = shard_of(3000, 1000), "shard.tar"
    output = setting.store.create(name, len(content))
    for at in range(0, len(content), 700_000):
        output.write(content[at : at + 700_000])
    assert isinstance(output._upload, Deposit)
    assert output.commit().checksum == checksum_of(content)
    job = setting.store._task.job
    found = setting.store._nodes.ask(
        lambda: f"{setting.store._nodes.owner('out', name).url}/v1/node/locate?bucket=out&object={name}&job={job}"
    )
    index = ShardIndex.open(found["index_path"])
    assert (index.sample_count, index.version, index.checksum) == (3000, found["version"], checksum_of(content))
    assert not unfinished(setting)


def test_compressed_shards_and_small_outputs_are_sent(setting):
    packed = setting.store.create("packed.tgz")
    packed.write(os.urandom(2_000_000))
    assert packed.sends
    packed.commit()
    small = setting.store.create("small.tar", 1000)
    small.write(bytes(1000))
    assert not small.sends, "it is kept back, and sent when it is complete"
    small.commit()
    assert small._upload is None


def test_a_worker_that_is_killed_leaves_nothing(setting):
    program = f"""
import sys
from dfc.engine.base import WorkerSettings
from dfc.engine.worker.store import Workshop
from dfc.jobs.tasks import Task
task = Task("killed-1", "none.at_all", 0, "l", b"", "out", {setting.cluster.bucket_id("out")!r})
store = Workshop(WorkerSettings(proxy_url={setting.proxy.url!r})).store(task)
output = store.__enter__().create("killed.tar")
output.write(bytes(30_000_000))
print(type(output._upload).__name__, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "Deposit\n"
        assert len(unfinished(setting)) == 2, "the blob and its index"
        worker.kill()
    wait_for(lambda: not unfinished(setting), "the target to remove it")
    assert "killed-1" not in setting.staged()


@pytest.mark.parametrize(("number", "error"), [(errno.EIO, StorageFailed), (errno.ENOSPC, NoSpace)])
@pytest.mark.parametrize("when", ["written", "finished"])
def test_the_target_hears_of_errors_of_its_disk(setting, monkeypatch, number, error, when):
    output = setting.store.create("failing.tar")
    output.write(bytes(2_000_000))

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    if when == "written":
        monkeypatch.setattr("dfc.storage.blobs.deposit.write_all", fail)
        with pytest.raises(error):
            output.write(bytes(2_000_000))
    else:
        monkeypatch.setattr("dfc.storage.parts.IndexWriter.finish", fail)
        with pytest.raises(error):
            output.commit()
    monkeypatch.undo()
    with pytest.raises(ValueError):
        output.write(b"x")
    wait_for(lambda: not unfinished(setting), "the target to remove it")
    errors = sum(
        float(line.split()[-1])
        for url in setting.cluster.target_urls()
        for line in call("GET", f"{url}/metrics").decode().splitlines()
        if line.startswith("dfc_disk_io_errors_total")
    )
    assert (errors > 0) or number == errno.ENOSPC


def test_a_disk_that_cannot_be_written_to_is_sent_to(setting, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EROFS, "read-only")

    monkeypatch.setattr(dfc.engine.worker.writing, "DepositFile", refuse)
    for number in range(2):
        output = setting.store.create(f"elsewhere-{number}.bin")
        output.write(bytes(2_000_000))
        assert not isinstance(output._upload, Deposit)
        assert output.commit().size == 2_000_000


def test_a_target_that_dies_takes_the_deposit_with_it(setting):
    setting.store._nodes.policy = RetryPolicy(retries=30)
    output = setting.store.create("lost.tar")
    output.write(bytes(3_000_000))
    for name, pid in setting.cluster.children().items():
        if name.startswith("target"):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(DfcError):
        output.commit()
    wait_for(setting.cluster.is_healthy, "the targets")
    wait_for(lambda: not unfinished(setting), "the sweep after the start", timeout_s=90)
    again = setting.store.create("lost.tar")
    again.write(bytes(3_000_000))
    assert again.commit().size == 3_000_000


def test_reads_survive_a_target_that_is_killed(setting, monkeypatch):
    monkeypatch.setattr(dfc.engine.worker.reading, "open_blob", lambda path: None)
    setting.store._nodes.policy = RetryPolicy(retries=30)  # both restart at once
    content = shard_of(3000, 10_000)
    shard = setting.put("killed.tar", content)
    names = {name: pid for name, pid in setting.cluster.children().items() if name.startswith("target")}
    source = setting.store.open(shard)
    with source.open() as stream:
        head = stream.read(1_000_000)
        for pid in names.values():
            os.kill(pid, signal.SIGKILL)
        assert head + stream.read() == content
    wait_for(setting.cluster.is_healthy, "the targets")
    output = setting.store.create("after.bin")
    output.write(content)
    assert output.commit().size == len(content)


def test_scratch_goes_with_its_context(setting):
    with setting.store.scratch() as directory:
        Path(directory, "file").write_bytes(b"x")
    assert not Path(directory).exists()
