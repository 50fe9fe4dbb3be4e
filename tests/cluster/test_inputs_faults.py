"""Bad input and bad days: what `sharditerator` does about each, and that nothing is lost without a count that tells.

The loaders for PyTorch have theirs in test_inputs_faults_torch.py.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from faulty_server import Cut, FaultyServer, Refuse, Slow, Stall
from harness import Cluster, wait_for
from job_shards import Members, tar_of
from PIL import Image

from dfc.client import Client
from dfc.inputs import gopen
from dfc.inputs.base import InputError, SampleBroken, ShardBroken, ShardUnreadable
from dfc.inputs.gopen import ShardIterator
from dfc.inputs.sources.streams import StreamOptions

SAMPLES = 60  # a shard
SIZE_BYTES = 20_000  # a sample
SPEC = "{url}/@3.tar"
HASTY = StreamOptions(retries=2, read_timeout_s=0.3)
PATIENT = StreamOptions(retries=40)  # all nodes start again at once, on a machine with much to do


def samples_of(shard: int, count: int = SAMPLES, size: int = SIZE_BYTES) -> list[tuple[str, bytes]]:
    """Samples of two fields with contents that no other sample has."""
    draw = random.Random(shard)
    found = []
    for number in range(count):
        key = f"{shard}/{number:05d}"
        found += [(f"{key}.bin", draw.randbytes(size)), (f"{key}.cls", str(number).encode())]
    return found


def contents(members: Members) -> list[tuple[str, bytes, int]]:
    """(key, bin, cls) of all samples."""
    pairs = zip(members[::2], members[1::2], strict=True)
    return [(name.removesuffix(".bin"), data, int(label)) for (name, data), (_, label) in pairs]


def read(samples: ShardIterator | Iterator[dict]) -> list[tuple[str, bytes, int]]:
    return [(sample["__key__"], sample["bin"], sample["cls"]) for sample in samples]


SHARDS = [samples_of(shard) for shard in range(3)]
ALL = [sample for shard in SHARDS for sample in contents(shard)]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    """Three shards, /0.tar to /2.tar, on a server that can misbehave."""
    with FaultyServer({f"/{number}.tar": tar_of(members) for number, members in enumerate(SHARDS)}) as running:
        yield running


def once(server: FaultyServer, **arguments: object) -> ShardIterator:
    return gopen.sharditerator_once(SPEC.format(url=server.url), **arguments)


# --- days when all comes right in the end: every sample once, in order


def test_a_connection_that_is_cut_is_continued_where_it_broke(server: FaultyServer) -> None:
    server.fail("/1.tar", Cut(300_000), Cut(0), Cut(200_000))
    samples = once(server)
    assert read(samples) == ALL
    assert (samples.counts.samples, samples.counts.shards, samples.counts.shards_skipped) == (180, 3, 0)
    assert samples.counts.retries == 3
    assert server.starts("/1.tar") == [0, 300_000, 300_000, 500_000]
    assert server.starts("/0.tar") == [0]


def test_503_is_asked_again(server: FaultyServer) -> None:
    server.fail("/0.tar", Refuse(), Refuse(), Refuse(429))
    server.fail("/2.tar", Cut(100_000), Refuse(retry_after_s=None))
    samples = once(server)
    assert read(samples) == ALL
    assert samples.counts.retries == 5


def test_a_server_that_falls_silent_is_left_and_asked_for_the_rest(server: FaultyServer) -> None:
    server.fail("/1.tar", Stall(400_000))
    samples = once(server, options=HASTY)
    assert read(samples) == ALL
    assert samples.counts.retries >= 1
    assert set(server.starts("/1.tar")) == {0, 400_000}  # on a busy machine more than once


def test_a_slow_server_is_waited_for(server: FaultyServer) -> None:
    """The timeout is for silence: 1.2 MB in 3.6 s are no fault, whatever the timeout."""
    server.fail("/0.tar", Slow(50_000, 0.15))
    samples = once(server, options=StreamOptions(retries=2, read_timeout_s=2.0))
    assert read(samples) == ALL
    assert samples.counts.retries == 0


def test_a_cluster_that_is_killed_and_comes_back(start_cluster: Callable[..., Cluster]) -> None:
    """Every process of it, in the middle of a shard of which most has not been sent."""
    cluster = start_cluster(targets=2)
    shards = [samples_of(number, count=300, size=150_000) for number in range(2)]
    with Client(cluster.url) as client:
        for number, members in enumerate(shards):
            client.put("big", f"{number}.tar", tar_of(members))
    samples = gopen.sharditerator_once(f"{cluster.url}/big/@2.tar", readers=1, ahead_bytes=1, options=PATIENT)
    first = read(next(samples) for _ in range(20))
    before = cluster.children()
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    rest = read(samples)
    assert first + rest == [sample for members in shards for sample in contents(members)]
    assert samples.counts.retries > 0
    assert samples.counts.shards_skipped == 0
    wait_for(lambda: cluster.children().keys() == before.keys(), "all nodes to be back")
    assert not set(cluster.children().values()) & set(before.values())


# --- shards that cannot be had, or only in part


def gone(server: FaultyServer) -> str:
    server.fail("/1.tar", *[Refuse(500)] * 20)
    return "500"


def not_there(server: FaultyServer) -> str:
    del server.files["/1.tar"]
    return "404"


@pytest.mark.parametrize("happen", [gone, not_there])
def test_a_shard_that_cannot_be_had(server: FaultyServer, happen, caplog: pytest.LogCaptureFixture) -> None:
    said = happen(server)
    caplog.set_level(logging.WARNING, "dfc.inputs")
    samples = once(server, options=HASTY, handler="warn")
    assert read(samples) == contents(SHARDS[0]) + contents(SHARDS[2])
    assert (samples.counts.shards, samples.counts.shards_skipped) == (2, 1)
    assert [said in error and "/1.tar" in error for error in samples.counts.errors] == [True]
    assert sum("/1.tar" in record.getMessage() for record in caplog.records) >= 1
    server.fail("/1.tar", *[Refuse(500)] * 20)
    with pytest.raises(ShardUnreadable, match=said) as raised:
        read(once(server, options=HASTY, handler="raise"))
    assert raised.value.url.endswith("/1.tar")


@pytest.mark.parametrize(("suffix", "pack"), [("tar", bytes), ("tgz", lambda data: gzip.compress(data, 1))])
def test_a_truncated_shard_gives_what_is_whole(server: FaultyServer, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    """At the end of the file, that is: as somebody has uploaded it, not cut on the way."""
    data = pack(tar_of(SHARDS[1]))
    server.files["/1.tar"] = data[: len(data) // 2]
    samples = once(server, handler="skip")
    found = read(samples)
    whole = len(found) - 2 * SAMPLES
    assert SAMPLES // 2 - 3 <= whole <= SAMPLES // 2
    assert found == contents(SHARDS[0]) + contents(SHARDS[1])[:whole] + contents(SHARDS[2])
    assert samples.counts.shards_skipped == 1
    assert samples.counts.samples == len(found)
    with pytest.raises(ShardBroken, match=r"/1\.tar") as raised:
        read(once(server, handler="raise"))
    assert raised.value.url.endswith("/1.tar")


@pytest.mark.parametrize(
    "rubbish",
    [random.Random(1).randbytes(100_000), b"<html>Sign in to the network</html>" * 100, gzip.compress(b"\1" * 100_000)],
    ids=["noise", "page", "compressed-rubbish"],
)
def test_what_is_no_tar(server: FaultyServer, rubbish: bytes) -> None:
    server.files["/1.tar"] = rubbish
    samples = once(server, handler="skip")
    assert read(samples) == contents(SHARDS[0]) + contents(SHARDS[2])
    assert (samples.counts.shards, samples.counts.shards_skipped) == (2, 1)
    with pytest.raises(ShardBroken):
        read(once(server, handler="raise"))


def test_an_empty_file_is_an_archive_of_nothing_and_rubbish_is_none(server: FaultyServer) -> None:
    server.files["/0.tar"] = tar_of([])
    samples = once(server, handler="raise")
    assert read(samples) == contents(SHARDS[1]) + contents(SHARDS[2])
    for content, counts in ((b"", (3, 0)), (b"rubbish " * 100, (2, 1))):
        server.files["/0.tar"] = content
        samples = once(server, handler="skip")
        assert read(samples) == contents(SHARDS[1]) + contents(SHARDS[2])
        assert (samples.counts.shards, samples.counts.shards_skipped) == counts


def test_too_many_errors_raise_and_good_samples_make_up_for_them(server: FaultyServer) -> None:
    """As published: `maxerrs` errors raise, a good sample gives one back."""
    for number in range(3, 20):
        server.files[f"/{number}.tar"] = b"rubbish " * 100
    with pytest.raises(InputError):
        read(gopen.sharditerator_once(f"{server.url}/{{0..19}}.tar", handler="skip"))
    with pytest.raises(InputError):
        read(gopen.sharditerator_once(f"{server.url}/{{0..19}}.tar", handler="skip", maxerrs=17))
    assert read(gopen.sharditerator_once(f"{server.url}/{{0..19}}.tar", handler="skip", maxerrs=18)) == ALL
    in_turn = [f"{server.url}/{number}.tar" for pair in zip([0, 1, 2] * 7, range(3, 20), strict=False) for number in pair]
    samples = gopen.sharditerator_once(in_turn, handler="skip", maxerrs=3)
    assert len(read(samples)) == 17 * SAMPLES
    assert samples.counts.shards_skipped == 17


def test_endless_epochs_of_nothing_end_with_an_error(server: FaultyServer) -> None:
    """Not with a loop that never comes back."""
    server.files = {f"/{number}.tar": tar_of([]) for number in range(3)}
    with pytest.raises(InputError, match="no samples found"):
        next(gopen.sharditerator(SPEC.format(url=server.url), maxerrs=None, handler="skip"))


# --- samples that are not what they should be


def png(number: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (number, number, number)).save(out, "PNG")
    return out.getvalue()


def pictures(broken: set[int], without: set[int]) -> bytes:
    """Twenty samples of a picture and a class, some with half a picture, some without a class."""
    members = []
    for number in range(20):
        members.append((f"{number:03d}.png", png(number)[: 40 if number in broken else None]))
        if number not in without:
            members.append((f"{number:03d}.cls", str(number).encode()))
    return tar_of(members)


def test_a_member_that_cannot_be_decoded(server: FaultyServer, caplog: pytest.LogCaptureFixture) -> None:
    server.files = {"/0.tar": pictures({3, 11}, set())}
    caplog.set_level(logging.WARNING, "dfc.inputs")
    samples = gopen.sharditerator_once(f"{server.url}/0.tar")
    assert [sample["cls"] for sample in samples] == [number for number in range(20) if number not in (3, 11)]
    assert (samples.counts.samples, samples.counts.samples_skipped) == (18, 2)
    assert len(samples.counts.errors) == 2
    assert [key in samples.counts.errors[at] for at, key in enumerate(("003", "011"))] == [True, True]
    assert len([record for record in caplog.records if record.name == "dfc.inputs"]) == 2
    with pytest.raises(SampleBroken, match="003") as raised:
        list(gopen.sharditerator_once(f"{server.url}/0.tar", handler="raise"))
    assert (raised.value.key, raised.value.url) == ("003", f"{server.url}/0.tar")


def test_a_sample_without_the_fields_that_were_asked_for(server: FaultyServer) -> None:
    server.files = {"/0.tar": pictures(set(), {0, 19})}
    samples = gopen.sharditerator_once(f"{server.url}/0.tar", fields="png cls", handler="skip")
    assert [sample["cls"] for sample in samples] == list(range(1, 19))
    assert samples.counts.samples_skipped == 2
    with pytest.raises(SampleBroken, match="cls") as raised:
        list(gopen.sharditerator_once(f"{server.url}/0.tar", fields="png cls", handler="raise"))
    assert raised.value.key == "000"
    assert len(list(gopen.sharditerator_once(f"{server.url}/0.tar"))) == 20


def test_a_handler_of_ones_own_decides(server: FaultyServer) -> None:
    """WebDataset's form: True goes on, False ends quietly."""
    server.files = {"/0.tar": pictures({3, 11}, set())}
    seen = []

    def handler(problem: Exception) -> bool:
        seen.append(problem)
        return len(seen) < 2

    labels = [sample["cls"] for sample in gopen.sharditerator_once(f"{server.url}/0.tar", handler=handler)]
    assert labels == [number for number in range(11) if number != 3]
    assert [type(problem) for problem in seen] == [SampleBroken, SampleBroken]


# --- programs that end

ENDING = """
import sys, threading
from dfc.inputs import gopen
samples = iter(gopen.sharditerator(sys.argv[1], seed=1))
for _ in range(70): next(samples)
print("in the middle", flush=True)
if sys.argv[2] == "return": pass
elif sys.argv[2] == "exit": sys.exit(3)
elif sys.argv[2] == "raise": raise ValueError("of the user's own")
elif sys.argv[2] == "drop":
    del samples
    for thread in threading.enumerate():
        if thread is not threading.main_thread(): thread.join(5)
    print(threading.active_count(), "thread")
elif sys.argv[2] == "wait": sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("way", "status", "said"),
    [
        ("return", 0, "in the middle\n"),
        ("exit", 3, "in the middle\n"),
        ("raise", 1, "in the middle\n"),
        ("drop", 0, "in the middle\n1 thread\n"),
    ],
)
def test_a_program_that_ends_in_mid_epoch(server: FaultyServer, way: str, status: int, said: str) -> None:
    """At once, with its own exit status, and without a word that is not its own."""
    command = [sys.executable, "-W", "error", "-c", ENDING, SPEC.format(url=server.url), way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (status, said), done
    last = done.stderr.strip().rpartition("\n")[2]
    assert last == ("ValueError: of the user's own" if way == "raise" else "")


def test_no_reading_thread_outlives_the_end_of_a_program(server: FaultyServer) -> None:
    """The interpreter would stop it anywhere, also where it holds a lock that is wanted for tidying up."""
    told_last = "import atexit, threading\natexit.register(lambda: print(threading.active_count()))"
    command = [sys.executable, "-c", told_last + ENDING, SPEC.format(url=server.url), "return"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "in the middle\n1\n", "")


def test_ctrl_c_while_it_waits_for_a_silent_server(server: FaultyServer) -> None:
    server.fail("/0.tar", Stall(0))
    program = "import sys\nfrom dfc.inputs import gopen\nfor _ in gopen.sharditerator_once(sys.argv[1]): pass"
    command = [sys.executable, "-c", program, SPEC.format(url=server.url)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        wait_for(lambda: server.starts("/0.tar"), "the first request")
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=120)
    assert child.returncode in (1, 130, -signal.SIGINT)
    assert said.strip().endswith("KeyboardInterrupt")
