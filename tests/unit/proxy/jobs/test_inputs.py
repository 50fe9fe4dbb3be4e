"""Which shards a job reads: in order, from all targets, and without holding the event loop up."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from registering import target_entry

from dfc.errors import BadRequest, MapChanging, ObjectNotFound, Unavailable
from dfc.http.retry import RemoteError
from dfc.jobs.request import CheckedSpec, parse_spec
from dfc.jobs.spec import InputSpec
from dfc.jobs.tasks import SHARDS_BLOCK, InputShard, decode_blocks, encode_blocks
from dfc.listing.pages import Page
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, NodeEntry
from dfc.proxy.jobs import inputs
from dfc.proxy.jobs.inputs import InputResolver, input_warnings
from dfc.wire import PROTOCOL

MANY = 100_000


def shard(name: str, node: str = "t0") -> InputShard:
    return InputShard("in", name, "0123456789abcdef01", "0" * 32, 1_000_000, 1_000_000, 100, 200, 0, 0, "tar", node)


def packed(shards: list[InputShard]) -> bytes:
    return b"".join(encode_blocks(shards))


class Stream:
    """An answer of a target."""

    url = "http://t/v1/node/shards"

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.content = self

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self._content

    def close(self) -> None:
        pass


class FakeCluster:
    """Targets that answer at once; what they take is not what is tested here."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.asked: list[str] = []
        self._contents = contents
        self.map = ClusterMap(
            cluster_id="c",
            version=1,
            nodes=tuple(
                target_entry(node, number, protocol=PROTOCOL, disks=(DiskEntry(id=f"d{node}", weight=1.0),))
                for number, node in enumerate(contents, 1)
            ),
            buckets=(BucketEntry(id="b1", name="in"),),
        )
        self.control = SimpleNamespace(open_stream=self._open)

    async def _open(self, url: str) -> Stream:
        self.asked.append(url)
        return Stream(self._contents[url.removeprefix("http://").partition("/")[0]])

    def bucket(self, name: str) -> BucketEntry:
        (entry,) = self.map.buckets
        assert entry.name == name
        return entry

    def live_targets(self, by: ClusterMap) -> list[NodeEntry]:
        if any(node.state != "up" for node in by.nodes):
            raise Unavailable("a target is down, so this is not known")
        return by.targets()

    def targets_of(self, bucket_id: str, by: ClusterMap) -> list[NodeEntry]:
        assert bucket_id == "b1"
        return by.targets()

    async def ask_all(self, ask, nodes):
        return [await ask(node) for node in nodes]


def resolver(contents: dict[str, bytes]) -> InputResolver:
    return InputResolver(FakeCluster(contents))  # type: ignore[arg-type]


@given(st.lists(st.lists(st.text(min_size=1, max_size=3)), max_size=4), st.integers(1, 5), st.integers(1, 4))
def test_in_order_is_what_sorting_gives(targets, block, step):
    shards = [[shard(name) for name in names] for names in targets]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "SAMPLE_STEP", step)
        patch.setattr("dfc.jobs.tasks.SHARDS_BLOCK", block)
        found = inputs._in_order([packed(each) for each in shards])
    assert [each.name for each in found] == sorted(each.name for some in shards for each in some)


def test_blocks_hold_so_many_and_no_more():
    shards = [shard(str(number)) for number in range(2 * SHARDS_BLOCK + 1)]
    blocks = list(decode_blocks(packed(shards)))
    assert [len(block) for block in blocks] == [SHARDS_BLOCK, SHARDS_BLOCK, 1]
    assert [each for block in blocks for each in block] == shards
    assert list(decode_blocks(b"")) == []


async def test_the_loop_turns_while_a_hundred_thousand_shards_are_decoded_and_sorted(monkeypatch):
    names = [f"train/{number:06d}.tar" for number in range(MANY)]
    random.Random(1).shuffle(names)
    contents = {f"t{at}": packed([shard(name, f"t{at}") for name in sorted(names[at::2])]) for at in range(2)}
    threads, largest, turns = set(), 0, 0
    real = msgspec.msgpack.Decoder(list[InputShard]).decode

    def decode(content: memoryview) -> list[InputShard]:
        nonlocal largest
        found = real(content)
        threads.add(threading.get_ident())
        largest = max(largest, len(found))
        return found

    monkeypatch.setattr("dfc.jobs.tasks._decode_block", decode)
    resolving = asyncio.create_task(resolver(contents)._one(InputSpec("in", "train/"), False))
    while not resolving.done():
        await asyncio.sleep(0)
        turns += 1
    assert [each.name for each in resolving.result()] == sorted(names)
    assert threading.get_ident() not in threads
    assert largest == SHARDS_BLOCK
    # Each block takes longer than the interpreter leaves a thread alone with it, so the loop turns about as often.
    assert turns > MANY // SHARDS_BLOCK // 2


async def test_named_shards_come_in_the_order_of_the_names():
    found = await resolver({"t0": packed([shard("b"), shard("a")])})._one(InputSpec("in", ["b", "a"]), False)
    assert [each.name for each in found] == ["b", "a"]


async def test_named_twice_or_missing_is_said():
    with pytest.raises(BadRequest, match="twice: 'a'"):
        await resolver({"t0": b""})._one(InputSpec("in", ["b", "a", "a"]), False)
    with pytest.raises(ObjectNotFound, match="'a'"):
        await resolver({"t0": packed([shard("b")])})._one(InputSpec("in", ["b", "a"]), False)


@pytest.mark.parametrize("content", [b"\xdd\0\0\0\x01\x91", packed([shard("a")])[:-1], b"\0\0\0\x01\xc0"])
async def test_an_answer_that_is_none_is_unavailable(content):
    cluster = FakeCluster({"t0": content})
    spec = SimpleNamespace(spec=SimpleNamespace(inputs=[InputSpec("in", "a")], operation="list_keys"), options=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "all_inputs", lambda spec: [(InputSpec("in", "**"), False)])
        with pytest.raises(Unavailable, match="unexpected answer"):
            await InputResolver(cluster).resolve(spec)  # type: ignore[arg-type]


class Turning(FakeCluster):
    """A cluster that takes a step while it is asked: the first one has heard of it, the proxy only later."""

    def __init__(self, contents: dict[str, bytes], *, steps: int = 1) -> None:
        super().__init__(contents)
        self.left = steps

    async def _open(self, url: str) -> Stream:
        if f"step={self.map.step}" not in url.partition("?")[2].split("&"):
            raise AssertionError(f"{url} does not say that the map is at step {self.map.step}")
        if self.left and url.startswith("http://t0/"):
            self.left -= 1
            self.map = msgspec.structs.replace(self.map, step=self.map.step + 1, version=self.map.version + 1)
            raise RemoteError(503, b'{"error": {"code": "map_changing", "message": "at another step"}}', url)
        return await super()._open(url)


@pytest.mark.parametrize("spec", ["**", ["a", "b"]])
async def test_no_shard_is_left_out_when_a_step_is_taken_while_targets_are_asked(monkeypatch, spec):
    """What one of them decides about by one step, and the other by another, may lack shards: all are asked again."""
    monkeypatch.setattr("dfc.proxy.objects.STEP_S", 0.001)
    a, b = shard("a"), shard("b")
    told = {"t0": packed([a]), "t1": packed([b])} if spec == "**" else dict.fromkeys(("t0", "t1"), packed([a, b]))
    cluster = Turning(told, steps=3)
    found = await InputResolver(cluster)._one(InputSpec("in", spec), False)  # type: ignore[arg-type]
    assert [each.name for each in found] == ["a", "b"]


async def test_steps_that_follow_each_other_too_fast_are_said(monkeypatch):
    monkeypatch.setattr("dfc.proxy.objects.STEP_S", 0.001)
    restless = Turning({"t0": packed([shard("a")]), "t1": packed([shard("b")])}, steps=10_000)
    with pytest.raises(MapChanging, match="another step"):
        await InputResolver(restless)._one(InputSpec("in", "**"), False)  # type: ignore[arg-type]


async def test_a_named_shard_is_asked_for_where_it_is_decided_about():
    """Its first replica may be up and lack the shard, and is not to say that there is none."""
    cluster = FakeCluster({f"t{number}": b"" for number in range(3)})
    cluster.map = msgspec.structs.replace(
        cluster.map, buckets=(BucketEntry(id="b1", name="in", copies=2, written=2, wanted=2),)
    )
    first, second, _ = [each.node for each in cluster.map.owners(cluster.map.buckets[0], "a", 3)]
    lagging = tuple(
        msgspec.structs.replace(node, disks=(msgspec.structs.replace(node.disks[0], out_of_sync_with=(f"d{second.id}",)),))
        if node.id == first.id
        else node
        for node in cluster.map.nodes
    )
    cluster.map = msgspec.structs.replace(cluster.map, nodes=lagging)
    cluster._contents[second.id] = packed([shard("a")])
    found = await InputResolver(cluster)._one(InputSpec("in", ["a"]), False)  # type: ignore[arg-type]
    assert [each.name for each in found] == ["a"]
    down = tuple(msgspec.structs.replace(node, state="down") if node.id == second.id else node for node in cluster.map.nodes)
    cluster.map = msgspec.structs.replace(cluster.map, nodes=down)
    with pytest.raises(Unavailable, match="not known"):
        await InputResolver(cluster)._one(InputSpec("in", ["a"]), False)  # type: ignore[arg-type]


def torn(name: str, repeated: int = 0, dropped: int = 0) -> InputShard:
    return InputShard("b", name, "v", "c", 10, 10, 3, 3, repeated, dropped, "tar", "t1")


def spec_of(operation: str, pattern: str, shards: object = "*.tar", bucket: str = "b", **options: object) -> CheckedSpec:
    given, output = {"bucket": bucket, "shards": shards}, {"bucket": "o", "pattern": pattern}
    return parse_spec(msgspec.json.encode({"operation": operation, "input": given, "output": output, "options": options}))


def warned(operation: str, pattern: str, *shards: InputShard, **options: object) -> tuple[str, ...]:
    return input_warnings(spec_of(operation, pattern, **options), [shards])


def test_a_job_that_will_fail_for_its_keys_says_so_with_what_can_be_done():
    first = "the job will fail: a sample has the key of an earlier one in b/x.tar; set on_split to join or keep"
    assert warned("reshuffle", "r-%03d.tar", torn("x.tar", 1), torn("y.tar"))[0].startswith(first)
    assert (
        "299 samples have keys of earlier ones in b/x.tar and 1 more shards"
        in warned("stats", "s.json", torn("x.tar", 298), torn("y.tar", 1))[0]
    )
    assert warned("reshuffle", "r-%03d.tar", torn("x.tar", 1), on_split="join") == ()
    assert warned("validate", "v.json", torn("x.tar", 1)) == ()


@pytest.mark.parametrize(
    ("operation", "pattern", "options", "is_left_out"),
    [
        ("reshuffle", "r-%03d.tar", {}, True),
        ("validate", "v.json", {}, False),
        ("validate", "clean/", {"repair": True}, True),
        ("stats", "s.json", {}, False),
        ("keys", "k.txt", {}, False),
    ],
)
def test_members_are_left_out_only_where_samples_are_written(operation, pattern, options, is_left_out):
    (said,) = warned(operation, pattern, torn("x.tar", dropped=2), **options)
    assert said == f"2 members belong to no sample{' and will be left out' if is_left_out else ''}: in b/x.tar"


async def test_a_dry_run_names_what_looks_like_a_shard_and_is_skipped(monkeypatch):
    rows = [("a.tar", 1, "", 1, 3, 3), *((name, 1, "", 1, None, None) for name in (".dfc/x.tar", "f.tar", "g.tgz", "n.txt"))]
    asked = []

    async def one_page(cluster, query, limit):
        asked.append((query.bucket_id, query.prefix, limit))
        if query.bucket_id == "down":
            raise Unavailable("not now")
        return Page([row for row in rows if row[0].startswith(query.prefix)], [], False)

    monkeypatch.setattr(inputs, "one_page", one_page)
    resolver = inputs.InputResolver(SimpleNamespace(bucket=lambda name: SimpleNamespace(id=name)))

    async def skipped(shards, bucket="b", operation="reshuffle", pattern="r-%03d.tar"):
        return await resolver.skipped(spec_of(operation, pattern, shards, bucket))

    said = "1 object is named like a shard, but cannot be read as one and will be skipped: b/f.tar"
    assert await skipped("*.tar") == (said,)
    assert await skipped("**") == (
        "2 objects are named like a shard, but cannot be read as one and will be skipped: b/f.tar and 1 more",
    )
    assert await skipped("a*.tar") == ()
    assert await skipped("*.tar", bucket="down") == ()
    asked.clear()
    assert await skipped(["a.tar"]) == ()
    assert await skipped("{a,f}.tar") == ()
    assert await skipped("*.tar", operation="validate", pattern="v.json") == ()
    assert asked == [], "what is named must be there; what takes any object skips none"


async def test_an_answer_about_shards_has_a_limit(monkeypatch):
    content = packed([shard("a.tar")])
    monkeypatch.setattr(inputs, "JOB_INPUTS_ANSWER_BYTES_MAX", len(content))
    (found,) = await resolver({"t0": content})._one(InputSpec("in", "**"), False)
    assert found.name == "a.tar"
    monkeypatch.setattr(inputs, "JOB_INPUTS_ANSWER_BYTES_MAX", len(content) - 1)
    with pytest.raises(Unavailable, match="more than"):
        await resolver({"t0": content})._one(InputSpec("in", "**"), False)
