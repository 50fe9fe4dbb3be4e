"""What jobs have to do with a dataset, by the objects that they leave beside their outputs. No I/O.

Anybody who may write can store such an object, so nothing in it is believed: it is text, or it is compared with what is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from dfc.datasets import DatasetShards, DatasetTally
from dfc.errors import DfcError
from dfc.jobs.pattern import OutputPattern
from dfc.names import check_bucket_name, check_object_name, object_path
from dfc.pages import rfc3339
from dfc.tar.index.format import index_kind
from dfc.ui.addresses import dataset_url

SHOWN_MAX: Final = 8  # inputs, and outputs, of a job
TEXT_CHARS_MAX: Final = 200
_INPUTS: Final = b',\n"inputs": ['
_OUTPUTS: Final = b'"outputs": ['
_ID: Final = re.compile(r"[0-9a-f]{22}")


class _Shards(msgspec.Struct, frozen=True):
    bucket: str
    shards: str | list[str] = "**"


class _Output(msgspec.Struct, frozen=True):
    bucket: str
    pattern: str


class _Spec(msgspec.Struct, frozen=True):
    input: _Shards | list[_Shards]
    output: _Output


class _Read(msgspec.Struct, frozen=True):
    bucket: str
    name: str
    checksum: str = ""
    size: int = 0
    samples: int | None = None


class _Written(msgspec.Struct, frozen=True):
    name: str
    checksum: str = ""
    size: int = 0
    samples: int | None = None


class _Head(msgspec.Struct, frozen=True):
    operation: str
    created: str
    spec: _Spec
    label: str = ""


class _Whole(_Head, frozen=True):
    inputs: list[list[_Read]] = []
    outputs: list[_Written] = []


class Linked(NamedTuple):
    """A name, and the page or path that it leads to."""

    text: str
    url: str


class JobTrace(NamedTuple):
    """What a job has to do with a dataset. `made`: shards of it that it wrote, of which `same` are as it wrote them; `reads`:
    it read some. `is_cut`: its inputs and outputs are not known to the end. `report`: the name and the checksum (empty: not
    known) of its report on the dataset, if it made one; `covers`: it made one on the dataset and others; `is_old`: the shards
    are other ones by now."""

    bucket: str
    operation: str
    label: str
    created: str
    url: str
    record: str
    made: int
    same: int
    reads: bool
    inputs: list[Linked]
    outputs: list[Linked]
    is_cut: bool
    report: tuple[str, str] | None
    is_old: bool
    covers: bool = False


def trace_of(content: bytes, *, is_whole: bool, place: tuple[str, str], bucket: str, shards: DatasetShards) -> JobTrace | None:
    """Read what a job left at `place`, a bucket and a name, as far as `content` goes. `bucket` and `shards`: the dataset, which
    is not empty. None if it cannot be read."""
    try:
        job = _whole(content) if is_whole else _beginning(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        return None
    found = [each for each in job.outputs if place[0] == bucket and shards.place(each.name) is not None]
    made, same = len(found), sum(_checksum(shards, each.name) == each.checksum for each in found)
    read = [each for inputs in job.inputs for each in inputs]
    mine = [each for each in read if each.bucket == bucket and shards.place(each.name) is not None]
    reads = bool(mine) or any(_names(each, bucket, shards) for each in _inputs(job))
    if not is_whole and not made and _may_make(job, place[0], bucket, shards):
        made = len(shards)
    if not (made or reads):
        return _nothing(place)
    is_report = job.operation == "stats" and reads
    is_exact = is_report and len(mine) == len(read)
    job_id = place[1].rpartition("/")[2].removesuffix(".json")
    return JobTrace(
        bucket=place[0],
        operation=job.operation[:TEXT_CHARS_MAX],
        label=job.label[:TEXT_CHARS_MAX],
        created=job.created[:TEXT_CHARS_MAX],
        url=f"/ui/jobs/{job_id}" if _ID.fullmatch(job_id) else "",
        record=object_path(*place),
        made=made,
        same=same,
        reads=reads,
        inputs=_linked((each.bucket, each.name, each.size, each.samples) for each in read),
        outputs=_linked((place[0], each.name, each.size, each.samples) for each in job.outputs),
        is_cut=not is_whole,
        report=_report(job) if is_exact else None,
        is_old=_is_old(job, mine, shards, is_whole=is_whole),
        covers=is_report and len(shards) <= len(mine) < len(read),
    )


def _report(job: _Whole) -> tuple[str, str] | None:
    with suppress(DfcError):
        return check_object_name(job.spec.output.pattern), job.outputs[0].checksum if job.outputs else ""
    return None


def _nothing(place: tuple[str, str]) -> JobTrace:
    return JobTrace(place[0], "", "", "", "", object_path(*place), 0, 0, False, [], [], False, None, False)


def _whole(content: bytes) -> _Whole:
    return msgspec.json.decode(content, type=_Whole)


def _beginning(content: bytes) -> _Whole:
    """Read an object that is cut: its first line, and the lines of inputs and outputs as far as they go."""
    first, found, rest = content.partition(_INPUTS)
    if not found:
        raise ValueError("the spec does not end here")
    head = msgspec.json.decode(first + b"}", type=_Head)
    inputs, _, outputs = rest.partition(_OUTPUTS)
    return _Whole(
        head.operation, head.created, head.spec, head.label, [list(_lines(inputs, _Read))], list(_lines(outputs, _Written))
    )


def _lines(content: bytes, kind: Any) -> Iterator[Any]:
    for line in content.split(b"\n"):
        entry = line.strip(b"[], ")
        if entry:
            try:
                yield msgspec.json.decode(entry, type=kind)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the last one, which is cut
                return


def _inputs(job: _Whole) -> Sequence[_Shards]:
    given = job.spec.input
    return given if isinstance(given, list) else [given]


def _names(given: _Shards, bucket: str, shards: DatasetShards) -> bool:
    """Whether an input of a spec is the dataset, by its pattern."""
    return given.bucket == bucket and given.shards in (shards.pattern, shards.spec())


def _may_make(job: _Whole, place: str, bucket: str, shards: DatasetShards) -> bool:
    """Whether the shards are called as the job's outputs are: of one whose outputs were not read."""
    with suppress(DfcError):
        return place == bucket and not job.outputs and OutputPattern(job.spec.output.pattern).matches(shards.name(0))
    return False


def _checksum(shards: DatasetShards, name: str) -> str | None:
    at = shards.place(name)
    return None if at is None else shards.checksum(at)


def _is_old(job: _Whole, read: Sequence[_Read], shards: DatasetShards, *, is_whole: bool) -> bool:
    """Whether the shards are other ones than those that a job read."""
    if is_whole:
        return len(read) != len(shards) or any(_checksum(shards, each.name) != each.checksum for each in read)
    return rfc3339(shards.newest_us) > job.created or any(_checksum(shards, each.name) != each.checksum for each in read)


def _linked(objects: Iterable[tuple[str, str, int, int | None]]) -> list[Linked]:
    """Group objects, and link to the pages of datasets; of other objects, to what they are."""
    tallies: dict[str, DatasetTally] = {}
    others: list[Linked] = []
    for bucket, name, size, samples in objects:
        try:
            check_bucket_name(quote(bucket, safe=""))
            check_object_name(name)
        except DfcError:
            continue
        if samples is None or samples < 0 or index_kind(name) is None:
            if len(others) <= SHOWN_MAX:
                others.append(Linked(f"{bucket}/{name}", object_path(bucket, name)))
        else:
            tallies.setdefault(bucket, DatasetTally()).add([(name, size, "", 0, samples, None)])
    found = [
        Linked(f"{bucket}/{dataset.pattern}", dataset_url(bucket, dataset.pattern))
        for bucket, tally in tallies.items()
        for dataset in tally.datasets()
    ]
    found += others
    return found[: SHOWN_MAX + 1]
