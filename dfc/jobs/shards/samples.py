"""Reads the samples of a shard in order, for operations that need their contents."""

from __future__ import annotations

from collections.abc import Iterator

from dfc.formats.sample import ON_SPLIT_REMEDY, DataMember, OnSplit, SampleData, SplitSample
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard
from dfc.limits import JOB_MEMBER_BYTES_MAX
from dfc.tar.header import FILE, TYPES, TarError
from dfc.tar.reader import iterate_members
from dfc.tar.samples import SampleGrouper


def read_samples(store: Store, shard: InputShard, on_split: OnSplit = "fail") -> Iterator[SampleData]:
    """Yield every sample of a shard, in order, in one sequential pass.

    With `join`, the whole shard is held in memory if keys occur again. Raises SplitSample, TarError naming member and offset,
    InputChanged, JobCancelled.
    """
    if shard.repeated and on_split == "fail":
        raise SplitSample(
            f"{shard.label}: the key {_first_repeated(store, shard)!r} occurs again later in the shard; {ON_SPLIT_REMEDY}"
        )
    samples = _in_order(store, shard)
    if not shard.repeated or on_split == "keep":
        yield from samples
        return
    joined: dict[str, SampleData] = {}
    for sample in samples:
        first = joined.setdefault(sample.key, sample)
        if first is not sample:
            known = {member.ext for member in first.members}
            twice = next((member.ext for member in sample.members if member.ext in known), None)
            if twice is not None:
                raise SplitSample(f"{shard.label}: the sample {sample.key!r} has {twice!r} twice")
            first.members += sample.members
    for number, sample in enumerate(joined.values()):
        sample.number = number
        yield sample


def _in_order(store: Store, shard: InputShard) -> Iterator[SampleData]:
    source = store.open(shard)
    try:
        with source.open() as stream:
            grouper, sample, number, held = SampleGrouper(), None, 0, 0
            for member, data in iterate_members(stream, shard.kind):
                if member.type != TYPES[FILE] or member.key is None or member.ext is None:
                    continue
                if member.size > JOB_MEMBER_BYTES_MAX:
                    raise TarError(f"member {member.name[:80]!r} is too large to be changed in memory", member.offset)
                held += member.size
                if grouper.starts_sample(member.name):
                    if sample is not None:
                        yield sample
                        store.check()
                    sample = SampleData(member.key, number, [])
                    number, held = number + 1, member.size
                elif held > JOB_MEMBER_BYTES_MAX:
                    raise TarError(f"the sample {member.key[:80]!r} is too large to be changed in memory", member.offset)
                assert sample is not None
                sample.members.append(DataMember(member.ext, member.name, data.readall()))
            if sample is not None:
                yield sample
    except TarError as error:
        raise TarError(f"{shard.label}: {error}", error.offset, truncated=error.truncated) from None
    finally:
        source.close()


def _first_repeated(store: Store, shard: InputShard) -> str:
    seen = set()
    for sample in store.index(shard).samples():
        if sample.key in seen:
            return sample.key
        seen.add(sample.key)
    return "?"
