"""A row of the table: what was measured, what is required, and the arithmetic of alternated pairs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadtest.report import format_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One result. `reached` is compared with `required`, in the same unit; `at_most` turns the comparison round.

    `unit` is `x` for a ratio, `/s` for a rate, `MB`, `%`, or empty when nothing is required (`required` None).
    """

    name: str
    what: str
    measured: str
    beside: str
    reached: float
    required: float | None
    unit: str
    at_most: bool = False
    note: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        if self.required is None:
            return True
        return self.reached <= self.required if self.at_most else self.reached >= self.required

    @property
    def requirement(self) -> str:
        if self.required is None:
            return "measured"
        return f"{'≤' if self.at_most else '≥'} {format_figure(self.required, self.unit)}"

    def as_json(self) -> dict[str, object]:
        return {
            "row": self.name,
            "what": self.what,
            "measured": self.measured,
            "beside": self.beside,
            "reached": round(self.reached, 4),
            "required": self.required,
            "at_most": self.at_most,
            "unit": self.unit,
            "passed": self.passed,
            "note": self.note,
            "samples": self.samples,
        }


def format_figure(value: float, unit: str) -> str:
    """A figure with its unit: 1.23 x, 12,345 /s, 81 MB, 3.1 %."""
    if unit == "/s":
        return f"{value:,.0f} /s"
    if unit == "MB":
        return f"{value:.0f} MB"
    if unit == "%":
        return f"{value:.1f} %"
    return f"{value:.2f} {unit}"


def alternated(pairs: int, ours: Callable[[], float], theirs: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Measure both `pairs` times, the order turned round in every other pair, so that drift favours neither."""
    mine: list[float] = []
    other: list[float] = []
    for number in range(pairs):
        if number % 2:
            other.append(theirs())
            mine.append(ours())
        else:
            mine.append(ours())
            other.append(theirs())
    return mine, other


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the pairs' ratios."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


median = statistics.median
MACHINE_RUNS = 3


def machine_note(what: str, measure: Callable[[], float], show: Callable[[float], str]) -> str:
    """What the machine has to give at this moment, beside a row that was just measured."""
    return f"the machine in the same minute: {show(median([measure() for _ in range(MACHINE_RUNS)]))} by {what}"


def seconds_row(name: str, what: str, seconds: Sequence[float], limit: float | None, note: str = "") -> Row:
    """A row of durations, of which the median is at most `limit`."""
    found = median(seconds)
    samples = {"seconds": list(seconds)}
    return Row(name, what, f"{found:.2f} s", "", found, limit, "s", at_most=True, note=note, samples=samples)


def rate_ratio_row(
    name: str,
    what: str,
    beside: str,
    ours: list[float],
    theirs: list[float],
    required: float | None,
    note: str = "",
    show: Callable[[float], str] = lambda rate: f"{format_bytes(rate)}/s",
) -> Row:
    """A row of two rates measured in pairs, in bytes a second unless `show` says otherwise; `beside` is what the other is."""
    return Row(
        name=name,
        what=what,
        measured=show(median(ours)),
        beside=f"{beside} {show(median(theirs))}",
        reached=median_ratio(ours, theirs),
        required=required,
        unit="x",
        note=note,
        samples={"ours": ours, "theirs": theirs},
    )
