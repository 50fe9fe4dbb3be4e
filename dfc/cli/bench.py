"""`dfc bench-input`: measures how fast a loader on this machine reads from the cluster, and finds the bottleneck."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dfc.cli.session import Json, Retries, UsageMistake, session_of
from dfc.limits import format_size

if TYPE_CHECKING:
    from dfc.cli.measure import Measured, Report

UNDECODED = "none"
SECONDS = 2.0
RETRIES = 3
NAMES = {
    "link": "the link",
    "decompressor": "decompression",
    "parser": "parsing",
    "decoder": "decoding",
    "loader": "loader, undecoded",
    "decoding_loader": "loader, decoded",
}
ADVICE = {
    "link": "If the network or the disks are saturated, more workers do not help; smaller samples or a local cache do.",
    "decompressor": "Uncompressed .tar shards need no decompression; `dfc convert` makes them.",
    "parser": "Use more workers. Larger samples cost less to parse per byte.",
    "decoder": "Use more workers, up to the number of processors. Smaller pictures are decoded faster.",
}


def register(app: typer.Typer) -> None:
    app.command("bench-input")(bench_input)


def bench_input(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="SHARDS", help="Shards: a URL or a name such as bucket/train-@000147.tar.")],
    workers: Annotated[
        str, typer.Option("--workers", "-w", metavar="N,…", help="Numbers of processes to try (default 1,2,4 … processors).")
    ] = "",
    seconds: Annotated[float, typer.Option("--seconds", min=0.2, max=600, help="How long to measure each part.")] = SECONDS,
    decode: Annotated[
        str, typer.Option("--decode", help="How to decode pictures: rgb8, rgb, l8 …; auto (floats in [0, 1]); none.")
    ] = "rgb8",
    retries: Retries = RETRIES,
    as_json: Json = False,
) -> None:
    """Measure how fast a loader on this machine reads from the cluster, by number of worker processes.

    It measures each part alone (link, decompression, parsing, decoding), then all together, and names the slowest part.
    """
    session = session_of(context, as_json=as_json)
    from dfc.cli.measure import measure
    from dfc.errors import DfcError
    from dfc.inputs.base import InputError
    from dfc.inputs.sources.specs import resolve
    from dfc.inputs.sources.streams import StreamOptions

    counts = _parse_workers(workers)
    # The token belongs to the cluster of DFC_URL, and the loaders send it there; without DFC_URL it goes to the given URL.
    token = session.token if session.url is None else None
    form = None if decode == UNDECODED else decode
    try:
        refs = resolve(_spec(url), options=StreamOptions(token=token, retries=retries))
        report = measure(
            refs, workers=counts, seconds=seconds, decode=form, retries=retries, token=token, progress=session.note
        )
    except InputError as problem:
        # Errors of nodes and of the network have their own exit codes.
        cause = problem.__cause__ or problem.__context__
        raise cause if isinstance(cause, DfcError) else problem from None
    except ValueError as problem:
        raise UsageMistake(str(problem)) from None
    if as_json:
        session.print_json(_as_json(url, report))
    else:
        _print(report)


def _parse_workers(text: str) -> list[int]:
    from dfc.cli.measure import WORKERS_MAX, default_workers

    if not text:
        return default_workers()
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 4 and 1 <= int(part) <= WORKERS_MAX for part in parts):
        raise UsageMistake(f"--workers must be numbers from 1 to {WORKERS_MAX}, separated by commas, not {text!r}")
    return sorted({int(part) for part in parts})


def _spec(text: str) -> str:
    """Make a spec for loaders: a name without a scheme is in the cluster, as in all commands; /, ./ and ../ start a path."""
    return text if ":" in text.partition("/")[0] or text.startswith(("/", "./", "../")) else f"dfc:{text}"


def _as_json(url: str, report: Report) -> dict[str, Any]:
    return {
        "shards": url,
        "count": report.shards,
        "sample_bytes": round(report.sample_bytes),
        "compression": report.compression,
        "decode": report.decode,
        "cpus": report.cpus,
        "workers": [
            {
                "workers": each.workers,
                **{name: _rates(rate, report) for name, rate in (*each.parts.items(), *each.loaders.items())},
                "weakest": each.weakest,
                "reached": round(each.reached, 3),
            }
            for each in report.measured
        ],
    }


def _rates(rate: float, report: Report) -> dict[str, int]:
    return {"samples_per_s": round(rate), "bytes_per_s": round(rate * report.sample_bytes)}


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    first = report.measured[0]
    names = [*first.parts, *first.loaders]
    kind = f"compressed ({report.compression})" if report.compression else "not compressed"
    print(f"{report.shards:,} shards, {kind}, {format_size(report.sample_bytes)} per sample; {report.cpus} processors here")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("processes", justify="right")
    for name in names:
        table.add_column(NAMES[name], justify="right", min_width=12)
    for each in report.measured:
        found = {**each.parts, **each.loaders}
        table.add_row(str(each.workers), *(_cell(found[name], report) for name in names))
    # In a log, keep the table at full width: folded to 80 columns it is unreadable.
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for line in verdicts(report):
        print(line)


def _cell(rate: float, report: Report) -> str:
    return f"{rate:,.0f}/s\n{format_size(rate * report.sample_bytes)}/s"


def verdicts(report: Report) -> list[str]:
    """Summarize the results: a line per number of processes, and advice on the bottleneck of the last."""
    return [*map(_verdict, report.measured), ADVICE[report.measured[-1].weakest]]


def _verdict(each: Measured) -> str:
    processes = "1 process" if each.workers == 1 else f"{each.workers} processes"
    limit = each.parts[each.weakest]
    return (
        f"{processes}: the bottleneck is {NAMES[each.weakest]} with {limit:,.0f} samples/s by itself; "
        f"the loader reaches {each.reached:.0%} of that"
    )
