"""Read what the operations `stats` and `validate` found, from the objects that they write, or their beginnings. No I/O.

Anybody who may write can store such an object: nothing in it is believed, and what it says is text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from dfc.jobs.shards.digest import digest_in_order
from dfc.jobs.tasks import OutputRecord
from dfc.units import format_size
from dfc.wire.jobs import JobOutput

T = TypeVar("T")
REPORTING: Final = ("stats", "validate")
REPAIRED_NAME: Final = "report.json"  # of the report beside repaired shards, below their prefix
_END: Final = b',"by_shard":['  # of the totals in a report; in a text its quotes would be escaped
_PROBLEMS: Final = b',\n "problems": {'  # as above: in a text there is no line end
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # a report may be forged, with numbers of thousands of digits


class FieldTotals(msgspec.Struct, frozen=True):
    """Of a field in a report. `sizes`: how many members have from so many bytes to less than twice as many."""

    members: Count
    bytes: Count
    smallest: Count
    largest: Count
    sizes: list[tuple[Count, Count]] = []


class ClassTotals(msgspec.Struct, frozen=True):
    """Of a class in a report."""

    samples: Count
    bytes: Count


class StatsReport(msgspec.Struct, frozen=True):
    """The totals in a report of the operation `stats`."""

    shards: Count
    samples: Count
    stored_bytes: Count
    extensions: dict[str, FieldTotals]
    by: str | None = None
    without_class: Count = 0
    classes: dict[str, ClassTotals] | None = None


class ReportedProblem(msgspec.Struct, frozen=True):
    """A problem in a report of the operation `validate`."""

    shard: str
    key: str | None = None
    fields: list[str] = []
    message: str = ""
    first: str | None = None


class ValidateReport(msgspec.Struct, frozen=True):
    """A report of the operation `validate`. `counts` by kind; `problems` has the first of each kind, or nothing if only the
    beginning was read."""

    shards: Count
    other_objects: Count
    samples: Count
    counts: dict[str, Count]
    problems: dict[str, list[ReportedProblem]] = {}


def report_name(operation: str, pattern: str, options: Mapping[str, Any]) -> str:
    """The name of the report of a job with this output pattern. Empty if it writes none."""
    if operation not in REPORTING:
        return ""
    return pattern + REPAIRED_NAME if operation == "validate" and options.get("repair") is True else pattern


def is_of_job(output: JobOutput, name: str, size: int, checksum: str) -> bool:
    """Whether an object is what a job with this output has written, and not what a later one has put in its
    place. If it has written several, that is not known: yes."""
    record = OutputRecord(name, size, checksum, size, checksum, 0)
    return output.shards != 1 or output.digest == digest_in_order([record])


def report_of(content: bytes) -> StatsReport | None:
    """Read the beginning of a report of `stats`. None if it is none, or its totals do not end in it."""
    head, end, _ = content.partition(_END)
    return _decoded(head + b"}", StatsReport) if end else None


def validation_of(content: bytes) -> ValidateReport | None:
    """Read a report of `validate`, or its beginning. None if it is none, or its counts do not end in it."""
    whole = _decoded(content, ValidateReport)
    if whole is not None:
        return whole
    head, end, _ = content.partition(_PROBLEMS)
    return _decoded(head + b"}", ValidateReport) if end else None


def _decoded(content: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def found_in(operation: str, content: bytes) -> str:
    """Say in a line what a report found. Empty if it cannot be read."""
    if operation == "stats":
        counted = report_of(content)
        return "" if counted is None else counted_words(counted)
    checked = validation_of(content)
    return "" if checked is None else checked_words(checked)


def checked_words(report: ValidateReport) -> str:
    """`600 problems (600 duplicate) in 2 shards with 900 samples`."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.counts.items() if count)
    found = f"{_many(sum(report.counts.values()), 'problem')} ({kinds})" if kinds else "no problems"
    others = f"; {_many(report.other_objects, 'object')} not named like a shard" if report.other_objects else ""
    where = f"{_many(report.shards, 'shard')} with {_many(report.samples, 'sample')}"
    return f"{found} in {where}{others}"


def counted_words(report: StatsReport) -> str:
    """`3 shards, 270 samples, 1.2 MB; 10 classes by cls`."""
    found = f"{_many(report.shards, 'shard')}, {_many(report.samples, 'sample')}, {format_size(report.stored_bytes)}"
    if report.by is None or report.classes is None:
        return found
    without = f", {_many(report.without_class, 'sample')} without" if report.without_class else ""
    classes = "1 class" if len(report.classes) == 1 else f"{len(report.classes)} classes"
    return f"{found}; {classes} by {report.by}{without}"


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
