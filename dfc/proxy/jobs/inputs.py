"""Resolve the input shards of a job by asking the targets, and check its outputs for conflicts, before it is accepted."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Container, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from dfc.errors import BadRequest, DfcError, NoShards, ObjectNotFound, OutputExists, Unavailable
from dfc.formats.base import ON_SPLIT_REMEDY
from dfc.http.peer import read_body
from dfc.http.shutdown import end
from dfc.jobs.operations import other_inputs, reads_only, takes_any_object
from dfc.jobs.spec import CheckedSpec, InputSpec
from dfc.jobs.tasks import InputShard, decode_blocks
from dfc.limits import JOB_INPUT_SHARDS_MAX, JOB_INPUTS_ANSWER_BYTES_MAX, LIST_PAGE_MAX
from dfc.listing.pages import ListingQuery, Row
from dfc.listing.specs import Glob, OutputPattern, Prefix, expand, list_specs
from dfc.names import HIDDEN_PREFIX
from dfc.placement.map import BucketEntry, ClusterMap, NodeEntry
from dfc.placement.mapped import decider_of
from dfc.proxy.cluster import Cluster
from dfc.proxy.objects import by_one_step, merged_pages, one_page
from dfc.tar.index.format import index_kind

T = TypeVar("T")
SAMPLE_STEP: Final = 50  # of 2,000 shards, 40 names: between two that are 50 apart in the sample lie 2,500 shards
SKIPPED_INPUTS_MAX: Final = 8  # in which a dry run looks for objects that it would skip
_NAME: Final = attrgetter("name")


class InputResolver:
    """Resolves the inputs of jobs. Specs are expanded one at a time: a short one may stand for a million names."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._expanding = asyncio.Lock()

    async def resolve(self, spec: CheckedSpec) -> tuple[list[InputShard], ...]:
        """Return the shards of each input, and of those that the options name, in order.

        BucketNotFound, NoShards, ObjectNotFound for a named one that does not exist, NotAShard for one that should be an
        archive and is not.
        """
        found = []
        for source, anything in all_inputs(spec):
            self._cluster.bucket(source.bucket)
            try:
                async with self._expanding:
                    found.append(await self._one(source, anything))
            except msgspec.DecodeError as error:
                raise Unavailable(f"unexpected answer from a target: {error}") from error
            if sum(map(len, found)) > JOB_INPUT_SHARDS_MAX:  # before the next one: a spec may name a bucket many times
                raise BadRequest(f"a job may read at most {JOB_INPUT_SHARDS_MAX} shards")
        return tuple(found)

    async def skipped(self, spec: CheckedSpec) -> tuple[str, ...]:
        """Warn of objects that the patterns of a spec match and that are named like shards, but are not read: they have no
        index. Looks at the first page of names of the first inputs only; says nothing if that cannot be listed now."""
        if takes_any_object(spec.spec.operation):
            return ()
        found = list[str]()
        for source in spec.spec.inputs[:SKIPPED_INPUTS_MAX]:
            async with self._expanding:
                chosen = await asyncio.to_thread(expand, source.shards)
            if isinstance(chosen, list):
                continue  # what is named must be a shard
            with suppress(DfcError):
                page = await one_page(
                    self._cluster, ListingQuery(self._cluster.bucket(source.bucket).id, chosen.prefix), LIST_PAGE_MAX
                )
                names = await asyncio.to_thread(_called_shards, page.rows, chosen)
                found += [f"{source.bucket}/{name}" for name in names]
        if not found:
            return ()
        words = "1 object is" if len(found) == 1 else f"{len(found)} objects are"
        more = "" if len(found) == 1 else f" and {len(found) - 1} more"
        return (f"{words} named like a shard, but cannot be read as one and will be skipped: {found[0]}{more}",)

    async def _one(self, source: InputSpec, anything: bool) -> list[InputShard]:
        chosen = await asyncio.to_thread(expand, source.shards)
        if not isinstance(chosen, list):
            assert isinstance(source.shards, str)
            shards = await self._ask_everybody(source.bucket, source.shards, anything)
            if not shards:
                raise NoShards(f"no shard in bucket {source.bucket!r} matches {source.shards[:200]!r}")
            return shards

        await asyncio.to_thread(_check_once, chosen)
        known: dict[str, InputShard] = {}  # each name stands for itself: what is known stays so, whatever step is taken

        async def named(cluster_map: ClusterMap) -> None:
            bucket = self._cluster.bucket(source.bucket)
            self._targets(bucket, cluster_map)
            deciders = await asyncio.to_thread(_by_decider, cluster_map, bucket, chosen, known)

            async def ask(node: NodeEntry, names: list[str]) -> None:
                for spec in list_specs(names):
                    content = await self._ask(node, source.bucket, spec, anything, cluster_map.step)
                    for block in decode_blocks(content):  # one: few names fit into a request
                        known.update((shard.name, shard) for shard in block)

            await all_or_none(ask(node, names) for node, names in deciders)

        await by_one_step(self._cluster, named)
        return await asyncio.to_thread(_as_named, chosen, known, source.bucket)

    async def _ask_everybody(self, bucket: str, spec: str, anything: bool) -> list[InputShard]:
        async def ask(cluster_map: ClusterMap) -> list[bytes]:
            nodes = self._targets(self._cluster.bucket(bucket), cluster_map)
            return await all_or_none(self._ask(node, bucket, spec, anything, cluster_map.step) for node in nodes)

        return await asyncio.to_thread(_in_order, await by_one_step(self._cluster, ask))

    def _targets(self, bucket: BucketEntry, cluster_map: ClusterMap) -> list[NodeEntry]:
        """The targets that name all shards of a bucket. Unavailable also while one is down that is not needed for that: the job
        would wait for it, and what replaces a lost target waits for jobs."""
        self._cluster.live_targets(cluster_map)
        return self._cluster.targets_of(bucket.id, cluster_map)

    async def _ask(self, node: NodeEntry, bucket: str, spec: str, anything: bool, step: int) -> bytes:
        query = {"bucket": bucket, "shards": spec, "step": step, **({"any": "1"} if anything else {})}
        url = f"{node.url}/v1/node/shards?{urlencode(query, quote_via=quote)}"
        answer = await self._cluster.control.open_stream(url)
        try:
            return await read_body(answer, JOB_INPUTS_ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"target {node.id} broke off its answer") from error
        finally:
            answer.close()


async def all_or_none(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; the first failure ends the others, which would go on beside the next attempt."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end(*tasks)


def _called_shards(rows: Sequence[Row], chosen: Glob | Prefix) -> list[str]:
    """The names of objects that are named like shards, and have no index."""
    names = (row[0] for row in rows if row[4] is None and not row[0].startswith(HIDDEN_PREFIX))
    return [name for name in names if index_kind(name) is not None and chosen.matches(name)]


def _in_order(contents: Sequence[bytes]) -> list[InputShard]:
    """Merge the shards of all targets, sorted by name. Runs in a thread and never holds the interpreter's lock for long, even
    for a million shards: it decodes and sorts block by block, then sorts the range between two names of a sample at a time."""
    blocks: list[list[InputShard]] = []
    for content in contents:
        for block in decode_blocks(content):
            block.sort(key=_NAME)  # code points sort as their UTF-8 bytes do
            blocks.append(block)
    sample = sorted(shard.name for block in blocks for shard in block[::SAMPLE_STEP])
    ends = [0] * len(blocks)
    found: list[InputShard] = []
    for cut in (*sample[SAMPLE_STEP::SAMPLE_STEP], None):
        part: list[InputShard] = []
        for at, block in enumerate(blocks):
            begin = ends[at]
            ends[at] = len(block) if cut is None else bisect_right(block, cut, begin, key=_NAME)
            part += block[begin : ends[at]]
        part.sort(key=_NAME)
        found += part
    return found


def _as_named(names: Sequence[str], known: Mapping[str, InputShard], bucket: str) -> list[InputShard]:
    found = []
    for name in names:
        if name not in known:
            raise ObjectNotFound(f"object {name!r} does not exist in bucket {bucket!r}")
        found.append(known[name])
    return found


def all_inputs(spec: CheckedSpec) -> list[tuple[InputSpec, bool]]:
    """List the inputs of a spec and those that its options name, each with whether objects without an index are allowed."""
    operation = spec.spec.operation
    anything = takes_any_object(operation)
    return [(source, anything) for source in spec.spec.inputs] + [
        (source, True) for source in other_inputs(operation, spec.options)
    ]


def _check_once(names: Sequence[str]) -> None:
    """BadRequest for a duplicate name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BadRequest(f"the input names a shard twice: {name!r}")
        seen.add(name)


def _by_decider(
    cluster_map: ClusterMap, bucket: BucketEntry, names: Sequence[str], known: Container[str]
) -> list[tuple[NodeEntry, list[str]]]:
    """Group names that are not `known` by the node that decides about them. Unavailable while nobody does."""
    found: dict[str, tuple[NodeEntry, list[str]]] = {}
    for name in names:
        if name in known:
            continue
        node = decider_of(cluster_map, bucket, name)
        if node is None or node.state != "up":
            raise Unavailable(f"whether {name!r} exists is not known while targets are down or incomplete")
        found.setdefault(node.id, (node, []))[1].append(name)
    return list(found.values())


def check_apart(spec: CheckedSpec, inputs: Sequence[Sequence[InputShard]]) -> None:
    """Raise BadRequest when an output could have the name of an input: a job must not read what it writes."""
    output = spec.spec.output
    if spec.pattern.text.startswith(HIDDEN_PREFIX):
        raise BadRequest(f"names that begin with {HIDDEN_PREFIX!r} are reserved for DFC")
    for (source, _), shards in zip(all_inputs(spec), inputs, strict=True):
        if source.bucket == output.bucket:
            found = next((shard.name for shard in shards if spec.pattern.matches(shard.name)), None)
            if found is not None:
                raise BadRequest(f"the output {output.pattern!r} overlaps the input: it could replace {found!r}")


async def existing_outputs(cluster: Cluster, bucket: str, pattern: OutputPattern) -> AsyncIterator[str]:
    """Yield the names of existing objects that match the pattern, in order; none if the bucket does not exist."""
    entry = cluster.map.bucket(bucket)
    if entry is None:
        return
    async for page in merged_pages(cluster, ListingQuery(entry.id, pattern.literal), LIST_PAGE_MAX):
        for row in page.rows:
            if pattern.matches(row[0]):
                yield row[0]


async def check_free(cluster: Cluster, bucket: str, pattern: OutputPattern) -> None:
    """Raise OutputExists when an object matches the pattern."""
    async for name in existing_outputs(cluster, bucket, pattern):
        raise OutputExists(f"object {name!r} in bucket {bucket!r} matches the output pattern; {OutputExists.ADVICE}")


def input_warnings(spec: CheckedSpec, inputs: Sequence[Sequence[InputShard]]) -> tuple[str, ...]:
    """Return warnings about the shards: keys that come again, for which the job fails; members that belong to no sample."""
    return (*_split_warnings(spec, inputs), *_dropped_warnings(spec, inputs))


def _split_warnings(spec: CheckedSpec, inputs: Sequence[Sequence[InputShard]]) -> tuple[str, ...]:
    """One for all shards with keys that come again, if the job fails for that."""
    if getattr(spec.options, "on_split", None) != "fail":
        return ()
    torn = [shard for shards in inputs[: len(spec.spec.inputs)] for shard in shards if shard.repeated]
    if not torn:
        return ()
    count = sum(shard.repeated for shard in torn)
    words = "a sample has the key of an earlier one" if count == 1 else f"{count} samples have keys of earlier ones"
    others = "" if len(torn) == 1 else f" and {len(torn) - 1} more shards"
    return (f"the job will fail: {words} in {torn[0].label}{others}; {ON_SPLIT_REMEDY}",)


def _dropped_warnings(spec: CheckedSpec, inputs: Sequence[Sequence[InputShard]]) -> tuple[str, ...]:
    """One for all shards with members that belong to no sample."""
    losing = [shard for shards in inputs for shard in shards if shard.dropped]
    if not losing:
        return ()
    members = sum(shard.dropped for shard in losing)
    word = "member belongs" if members == 1 else "members belong"
    shards = "" if len(losing) == 1 else f" and {len(losing) - 1} more shards"
    left = "" if reads_only(spec.spec.operation, spec.options) else " and will be left out"
    return (f"{members} {word} to no sample{left}: in {losing[0].label}{shards}",)
