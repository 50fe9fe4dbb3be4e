"""Samples out of files that have names and no order to rely on: members of a zip, objects below a prefix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dfc.formats.sample import ON_SPLIT_REMEDY, OnSplit, SplitSample
from dfc.tar.samples import SampleGrouper, split_key

T = TypeVar("T")


@dataclass
class Group(Generic[T]):
    """The files of one sample, by name, each with what its bytes can be read from."""

    key: str
    files: list[tuple[str, T]] = field(default_factory=list)


@dataclass
class Grouped(Generic[T]):
    """`dropped` counts files that belong to no sample."""

    samples: list[Group[T]]
    dropped: int


def group_files(where: str, files: Iterable[tuple[str, T]], on_split: OnSplit) -> Grouped[T]:
    """Group neighbours with the same key into samples, as in a tar. SplitSample for a key that occurs again later, unless
    `on_split` says join or keep; joined files keep their order, and none may occur twice."""
    grouper, samples, dropped = SampleGrouper(), [], 0
    first: dict[str, Group[T]] = {}
    for name, what in files:
        parts = split_key(name)
        if parts is None:
            dropped += 1
            continue
        key = parts[0]
        if grouper.starts_sample(name):
            group = Group[T](key)
            known = first.setdefault(key, group)
            if known is not group and on_split == "fail":
                raise SplitSample(f"{where}: the key {key!r} occurs again later; {ON_SPLIT_REMEDY}")
            if known is group or on_split == "keep":
                samples.append(group)
            else:
                group = known
        group.files.append((name, what))
    if on_split == "join":
        for group in samples:
            extensions = [name[len(group.key) + 1 :].lower() for name, _ in group.files]
            if len(set(extensions)) < len(extensions):
                raise SplitSample(f"{where}: the sample {group.key!r} has an extension twice")
    return Grouped(samples, dropped)
