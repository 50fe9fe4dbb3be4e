"""What a job has found that writes a report: its counts, and the first problems. No I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

from dfc.jobs.reports import (
    ReportedProblem,
    StatsReport,
    ValidateReport,
    checked_words,
    counted_words,
    report_of,
    validation_of,
)
from dfc.ui import words
from dfc.units import format_size

PROBLEMS_SHOWN_MAX: Final = 5  # of each kind
KINDS_SHOWN_MAX: Final = 20
TEXT_CHARS_MAX: Final = 200
MEANINGS: Final = {
    "truncated": "the archive ends early",
    "broken": "the archive cannot be read to its end",
    "split": "a key comes again later in its shard, with other fields",
    "duplicate": "a key that an earlier sample has",
    "missing": "a required field is not there",
    "undecodable": "a picture or JSON that cannot be decoded",
}


class ProblemKind(NamedTuple):
    """Problems of a kind: how many there are in all, what that means, and the first of them."""

    name: str
    total: str
    meaning: str
    first: list[str]


class ReportView(NamedTuple):
    """A report in a line, as figures with names, and as problems. `is_bad`: there are problems."""

    said: str
    figures: list[tuple[str, str]]
    problems: list[ProblemKind]
    is_bad: bool


def view_of(operation: str, content: bytes) -> ReportView | None:
    """Read a report, or its beginning. None if it cannot be read."""
    if operation == "stats":
        counted = report_of(content)
        return None if counted is None else _counted(counted)
    checked = validation_of(content)
    return None if checked is None else _checked(checked)


def _counted(report: StatsReport) -> ReportView:
    fields = [
        (f"field {ext}"[:TEXT_CHARS_MAX], f"{words.count(totals.members)}, {format_size(totals.bytes)}")
        for ext, totals in sorted(report.extensions.items(), key=lambda pair: -pair[1].bytes)[:KINDS_SHOWN_MAX]
    ]
    figures = [
        ("shards", words.count(report.shards)),
        ("samples", words.count(report.samples)),
        ("size", format_size(report.stored_bytes)),
    ]
    if report.by is not None and report.classes is not None:
        figures.append((f"classes by {report.by}"[:TEXT_CHARS_MAX], words.count(len(report.classes))))
    return ReportView(counted_words(report)[:TEXT_CHARS_MAX], figures + fields, [], is_bad=False)


def _checked(report: ValidateReport) -> ReportView:
    kinds = [
        ProblemKind(
            kind[:TEXT_CHARS_MAX],
            words.count(count),
            MEANINGS.get(kind, ""),
            [_problem(each) for each in report.problems.get(kind, [])[:PROBLEMS_SHOWN_MAX]],
        )
        for kind, count in list(report.counts.items())[:KINDS_SHOWN_MAX]
        if count
    ]
    figures = [("shards", words.count(report.shards)), ("samples", words.count(report.samples))]
    return ReportView(checked_words(report)[:TEXT_CHARS_MAX], figures, kinds, is_bad=bool(kinds))


def _problem(problem: ReportedProblem) -> str:
    said = problem.shard[:TEXT_CHARS_MAX]
    if problem.key is not None:
        said += f", sample {problem.key[:TEXT_CHARS_MAX]!r}"
    if problem.fields:
        said += f", {', '.join(problem.fields)[:TEXT_CHARS_MAX]}"
    if problem.message:
        said += f": {problem.message[:TEXT_CHARS_MAX]}"
    return said + (f"; first in {problem.first[:TEXT_CHARS_MAX]}" if problem.first else "")
