"""Checks one shard for problems; a damaged shard is read up to the damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dfc.formats.sample import SampleData
from dfc.jobs.shards.images import Undecodable, check_field
from dfc.jobs.shards.samples import read_samples
from dfc.jobs.store import Store
from dfc.jobs.tasks import InputShard
from dfc.limits import JOB_PROBLEMS_MAX
from dfc.tar.compression import MAGIC_BYTES, kind_of_bytes
from dfc.tar.header import TarError
from dfc.tar.index.format import index_kind

PROBLEMS: Final = ("truncated", "broken", "split", "duplicate", "missing", "undecodable")


class ShardProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One problem. `offset` is in the uncompressed archive; `first` is the shard that had the key before."""

    shard: str
    key: str | None = None
    fields: list[str] = []
    message: str = ""
    offset: int | None = None
    first: str | None = None


@dataclass
class Findings:
    """The problems of a shard. `counts` and the first `problems` by kind; `bad`: ordinals of samples to leave out of a repaired
    shard; `parts`: ordinal of a later part of a split sample → ordinal of its first part."""

    samples: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    problems: dict[str, list[ShardProblem]] = field(default_factory=dict)
    bad: set[int] = field(default_factory=set)
    parts: dict[int, int] = field(default_factory=dict)

    def add(self, kind: str, problem: ShardProblem) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        found = self.problems.setdefault(kind, [])
        if len(found) < JOB_PROBLEMS_MAX:
            found.append(problem)


@dataclass
class _Seen:
    """A sample of a shard in which keys may occur again."""

    number: int
    fields: set[str]


def is_archive(shard: InputShard) -> bool:
    """Whether an object should be an archive: it has an index, or is named like a shard."""
    return shard.is_indexed or index_kind(shard.name) is not None


def read_until_broken(store: Store, shard: InputShard, findings: Findings | None = None) -> Iterator[SampleData]:
    """Yield samples as stored (a key that occurs again is a new sample) up to the first damage, which is added to `findings`.

    The sample at the damage is left out, since it may be incomplete.
    """
    if not shard.is_indexed:
        shard = msgspec.structs.replace(shard, kind=_kind_of(store, shard))
    try:
        yield from read_samples(store, shard, "keep")
    except TarError as error:
        if findings is not None:
            text = error.message.removeprefix(f"{shard.label}: ").removesuffix(f" at offset {error.offset}")
            kind = "truncated" if error.truncated else "broken"
            findings.add(kind, ShardProblem(shard.label, message=text, offset=error.offset))


def _kind_of(store: Store, shard: InputShard) -> str:
    """The kind of compression, by the first bytes, as for an index, else by the name."""
    source = store.open(shard)
    try:
        start = bytearray(min(source.size, MAGIC_BYTES))
        source.read_into(0, memoryview(start))
    finally:
        source.close()
    return kind_of_bytes(bytes(start), shard.name) or index_kind(shard.name) or "tar"


def look_through(
    store: Store, shard: InputShard, findings: Findings, require: list[str], *, decode: bool
) -> Iterator[tuple[str, int]]:
    """Yield key and ordinal of each sample; `findings` is complete after the last one.

    Parts of a split sample count as one sample, with the ordinal of the first part. A sample that shares a field with an
    earlier sample of the same key is another sample.
    """
    careful = shard.repeated != 0 or not shard.is_indexed  # else no key occurs again, and none needs to be remembered
    seen: dict[str, _Seen] = {}
    for key, number, fields, data in _samples(store, shard, findings, decode=decode):
        earlier = seen.get(key) if careful else None
        if earlier is not None and not earlier.fields & fields:
            findings.add("split", ShardProblem(shard.label, key))
            findings.parts[number] = earlier.number
            earlier.fields |= fields
            number = earlier.number
        else:
            findings.samples += 1
            if careful and earlier is None:
                seen[key] = _Seen(number, fields)
            elif not fields.issuperset(require):
                _miss(findings, shard, key, number, fields, require)
            yield key, number
        if data is not None:
            _decode(findings, shard, data, number)
    for key, sample in seen.items():
        if not sample.fields.issuperset(require):
            _miss(findings, shard, key, sample.number, sample.fields, require)


def _samples(
    store: Store, shard: InputShard, findings: Findings, *, decode: bool
) -> Iterator[tuple[str, int, set[str], SampleData | None]]:
    if shard.is_indexed and not decode:
        for sample in store.index(shard).samples():
            if not sample.number & 1023:
                store.check()
            yield sample.key, sample.number, {member.ext or "" for member in sample.members}, None
    else:
        for data in read_until_broken(store, shard, findings):
            yield data.key, data.number, {member.ext for member in data.members}, data if decode else None


def _miss(findings: Findings, shard: InputShard, key: str, number: int, fields: set[str], require: list[str]) -> None:
    findings.add("missing", ShardProblem(shard.label, key, [ext for ext in require if ext not in fields]))
    findings.bad.add(number)


def _decode(findings: Findings, shard: InputShard, sample: SampleData, number: int) -> None:
    for member in sample.members:
        try:
            check_field(member.ext, member.data)
        except Undecodable as error:
            findings.add("undecodable", ShardProblem(shard.label, sample.key, [member.ext], str(error)))
            findings.bad.add(number)
