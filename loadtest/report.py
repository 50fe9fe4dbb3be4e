"""The results of a run: recorders of workers, their sum, and its output as a table and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class Recorder:
    """The measurements of one worker. Not shared between threads."""

    latencies_s: list[float] = field(default_factory=list)
    bytes_moved: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def success(self, latency_s: float, bytes_moved: int) -> None:
        self.latencies_s.append(latency_s)
        self.bytes_moved += bytes_moved


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """The results of one scenario: latencies in seconds, rates per second of wall time over all connections."""

    scenario: str
    connections: int
    seconds: float
    operations: int
    bytes_moved: int
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    errors: dict[str, int]

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_moved / self.seconds if self.seconds else 0.0

    @property
    def requests_per_s(self) -> float:
        return self.operations / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "scenario": self.scenario,
            "connections": self.connections,
            "seconds": round(self.seconds, 6),
            "operations": self.operations,
            "bytes": self.bytes_moved,
            "bytes_per_s": round(self.bytes_per_s, 1),
            "requests_per_s": round(self.requests_per_s, 2),
            "latency_s": {"p50": self.p50_s, "p95": self.p95_s, "p99": self.p99_s, "max": self.max_s},
            "errors": self.errors,
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of an ascending sequence, 0.0 if it is empty; `share` is 0 to 1."""
    if not ordered:
        return 0.0
    rank = -(-len(ordered) * share // 1)  # the ceiling, without leaving floats
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


def summarize(scenario: str, recorders: Sequence[Recorder], seconds: float) -> ScenarioResult:
    """The sum over the workers of one scenario."""
    ordered = sorted(latency for recorder in recorders for latency in recorder.latencies_s)
    errors: Counter[str] = Counter()
    for recorder in recorders:
        errors.update(recorder.errors)
    return ScenarioResult(
        scenario=scenario,
        connections=len(recorders),
        seconds=seconds,
        operations=len(ordered),
        bytes_moved=sum(recorder.bytes_moved for recorder in recorders),
        p50_s=percentile(ordered, 0.50),
        p95_s=percentile(ordered, 0.95),
        p99_s=percentile(ordered, 0.99),
        max_s=ordered[-1] if ordered else 0.0,
        errors=dict(sorted(errors.items())),
    )


def format_bytes(count: float) -> str:
    """Bytes with a decimal unit, three digits: 3.21 GB."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.2f} GB"


def format_seconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def print_results(results: Sequence[ScenarioResult], url: str, console: Console) -> None:
    """Print the table of a run, and its errors by kind below."""
    table = Table(title=f"load test of {url}", title_justify="left")
    for column in ("scenario", "conns", "requests", "req/s", "bytes/s", "p50", "p95", "p99", "errors"):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for result in results:
        failed = sum(result.errors.values())
        table.add_row(
            result.scenario,
            str(result.connections),
            str(result.operations),
            f"{result.requests_per_s:,.1f}",
            f"{format_bytes(result.bytes_per_s)}/s",
            *(format_seconds(value) for value in (result.p50_s, result.p95_s, result.p99_s)),
            f"[red]{failed}[/red]" if failed else "0",
        )
    console.print(table)
    for result in results:
        for kind, count in result.errors.items():
            console.print(f"{result.scenario}: {count} × {kind}")


def write_json(path: str, document: object) -> None:
    """Write a document as indented JSON; `-` is standard output."""
    text = json.dumps(document, indent=2, sort_keys=False) + "\n"
    if path == "-":
        print(text, end="")
    else:
        Path(path).write_text(text, encoding="utf-8")
