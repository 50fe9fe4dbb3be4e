"""Prepare a job's commit after its last task: check that no object is in the way and all outputs are staged as they were
written, and stage the lineage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial

import msgspec

from dfc import __version__
from dfc.errors import BucketDeleting
from dfc.jobs.records import JobRecord, OutputSummary
from dfc.jobs.shards.digest import digest_in_order
from dfc.jobs.spec import CheckedSpec
from dfc.jobs.tasks import InputShard
from dfc.placement.map import NodeEntry
from dfc.placement.mapped import decider_of
from dfc.proxy.jobs.accepting.inputs import all_or_none, check_free, existing_outputs
from dfc.proxy.jobs.context import JobFailure, Means
from dfc.proxy.jobs.running.lineage import lineage_name, lineage_pieces
from dfc.proxy.jobs.running.staged import StagedObject


def is_bucket_gone(means: Means, record: JobRecord) -> bool:
    """Whether the job's output bucket was deleted since the job was accepted, even if it was created again."""
    bucket = means.cluster.map.bucket(record.bucket)
    return bucket is None or bucket.id != record.bucket_id or bucket.state == "deleting"


class Commit:
    """The commit of one job."""

    def __init__(self, means: Means, record: JobRecord, spec: CheckedSpec, inputs: Sequence[Sequence[InputShard]]) -> None:
        self._means = means
        self._record = record
        self._spec = spec
        self._inputs = inputs

    async def prepare(self) -> tuple[OutputSummary, str]:
        """Check everything that could keep the outputs from being published; return a summary of them and a warning, or "".

        Raises BucketDeleting, OutputExists, JobFailure; Unavailable when a target stays down.
        """
        means, record = self._means, self._record
        if is_bucket_gone(means, record):
            raise self._bucket_gone()
        warning = ""
        if self._spec.spec.overwrite:
            warning = await means.retried(self._leftovers)
        else:
            await means.retried(lambda: check_free(means.cluster, record.bucket, self._spec.pattern))
        summary = await means.plan(self._summarise)
        await means.retried(lambda: self._stage_lineage(summary))
        found, versions = 0, list[str]()
        nodes = means.cluster.map.holders()
        for node, prepared in zip(nodes, await self._prepared(nodes), strict=True):
            found += await means.plan(self._compare, node.id, prepared)
            versions += [each.version for each in prepared]
        if found != summary.shards:
            raise JobFailure("output_lost", f"{summary.shards} outputs were written, but {found} are staged")
        return msgspec.structs.replace(summary, oldest_version=min(versions)), warning

    async def _prepared(self, nodes: Sequence[NodeEntry]) -> list[list[StagedObject]]:
        """Have all targets prepare at the same time, since they send each other copies; what each has. Raises the first error,
        and nothing goes on then."""
        means, job = self._means, self._record.id
        return await all_or_none(means.retried(partial(means.staged.prepare, job, node)) for node in nodes)

    def _bucket_gone(self) -> BucketDeleting:
        return BucketDeleting(f"the bucket {self._record.bucket!r} was deleted while the job was running")

    async def _leftovers(self) -> str:
        means, first, count = self._means, "", 0
        async for name in existing_outputs(means.cluster, self._record.bucket, self._spec.pattern):
            if not await means.plan(means.journal.writes, self._record.id, name):
                first, count = first or name, count + 1
        more = f" and {count - 1} more" if count > 1 else ""
        return f"existing objects that match the output pattern were left unchanged: {first!r}{more}" if count else ""

    def _summarise(self) -> OutputSummary:
        journal, job_id = self._means.journal, self._record.id
        return OutputSummary(*journal.output_counts(job_id), digest_in_order(journal.outputs(job_id)))

    async def _stage_lineage(self, summary: OutputSummary) -> None:
        record = self._record
        pieces = lineage_pieces(record, self._means.journal, self._inputs, summary, __version__)
        await self._means.staged.put(record.id, record.bucket, lineage_name(record.id), self._from_thread(pieces))

    async def _from_thread(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (piece := await self._means.plan(next, pieces, None)) is not None:
            yield piece

    def _compare(self, node_id: str, prepared: Sequence[StagedObject]) -> int:
        """Check that a target's staged outputs are as their tasks wrote them; return their number."""
        cluster_map = self._means.cluster.map
        bucket = cluster_map.bucket(self._record.bucket)
        if bucket is None:
            raise self._bucket_gone()
        lineage = lineage_name(self._record.id)
        found = [each for each in prepared if each.object != lineage]
        known = self._means.journal.find_outputs(self._record.id, [each.object for each in found])
        for each in found:
            record = known.get(each.object)
            if record is None:
                raise JobFailure("internal_error", f"{each.object!r} is staged, but no known task wrote it")
            if (record.size, record.checksum) != (each.size, each.checksum):
                raise JobFailure("output_lost", f"the staged bytes of {each.object!r} differ from what its task wrote")
            # With copies, whoever has an output offers it to the primary.
            decider = None if bucket.has_several else decider_of(cluster_map, bucket, each.object)
            if not bucket.has_several and (decider is None or decider.id != node_id):
                raise JobFailure("map_changed", "targets joined or left while the job was running; submit it again")
        return len(known)
