"""Submits a job and follows it: a progress bar on terminals, else JSON or nothing. Ctrl-C cancels a job in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from dfc.cli.exits import Exit
from dfc.cli.session import Session, plain
from dfc.errors import DfcError
from dfc.units import format_size

if TYPE_CHECKING:
    from dfc.client import Client, Job


def run_job(
    session: Session, base: str | None, spec: Mapping[str, Any], *, detach: bool = False, dry_run: bool = False
) -> None:
    """Submit a job and follow it to its end, or print its plan or its id. Exits with the code for the job's final state."""
    client = session.client(base)
    if dry_run:
        _print_plan(session, client.jobs.plan(spec))
        return
    job = client.jobs.submit(spec)
    if detach:
        session.print_json(job) if session.as_json else print(job.id)
        return
    try:
        job = follow(session, client, job)
    except KeyboardInterrupt:
        _cancel(session, client, job.id)
        raise typer.Exit(Exit.INTERRUPTED) from None
    raise typer.Exit(conclude(session, client, job))


def _cancel(session: Session, client: Client, job_id: str) -> None:
    try:
        ended = client.jobs.cancel(job_id)
    except DfcError as error:
        session.print_error(error, f"cannot cancel the job {job_id}")
        return
    session.note(f"{session.program}: the job {job_id} is {ended.state}; its outputs are discarded")


def follow(session: Session, client: Client, job: Job) -> Job:
    """Show the progress of a job until it ends, and return it."""
    last = job
    with _meter(session, job) as show:
        for last in client.jobs.events(job.id):
            show(last)
    return last


def conclude(session: Session, client: Client, job: Job) -> Exit:
    """Print the result of a job, for people or as a line of JSON, and return the exit code."""
    if session.as_json:
        session.print_json(job)
        return Exit.OK if job.state == "succeeded" else Exit.FAILED
    for warning in job.warnings:
        session.note(f"{session.program}: warning: {warning}")
    if job.output is not None:
        found = _found(client, job)
        if found:
            print(f"{job.operation}: {found}")
        if not found or job.output.shards > 1:
            print(_written(job))
        return Exit.OK
    reason = f": {job.error.message}" if job.error else ""
    print(
        f"{session.program}: the job {job.id} {'was ' if job.state == 'cancelled' else ''}{job.state}{reason}", file=sys.stderr
    )
    return Exit.FAILED


def _written(job: Job) -> str:
    """What a job has written, in a line."""
    assert job.output is not None
    return (
        f"{job.operation}: {_count(job.output.shards, 'object')}, {_count(job.output.samples, 'sample')}, "
        f"{format_size(job.progress.bytes_out)}, digest {job.output.digest}"
    )


def _found(client: Client, job: Job) -> str:
    """What the report of a job says, and where it is. Empty if there is none, if it was replaced, or if it cannot be read: the
    job has succeeded nevertheless."""
    from dfc.jobs.reports import REPORTING, found_in, is_of_job, report_name
    from dfc.limits import REPORT_BYTES_MAX

    if job.output is None or job.operation not in REPORTING:
        return ""
    try:
        spec = client.jobs.spec(job.id)
        name = report_name(job.operation, spec["output"]["pattern"], spec.get("options") or {})
        stored = client.stat(job.bucket, name)
        if not is_of_job(job.output, name, stored.size, stored.etag):
            return ""
        said = found_in(job.operation, client.get(job.bucket, name, length=REPORT_BYTES_MAX))
    except DfcError:
        return ""
    return plain(f"{said}; the report is {job.bucket}/{name}") if said else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _print_plan(session: Session, plan: Mapping[str, Any]) -> None:
    if session.as_json:
        session.print_json(plan)
        return
    read, written = plan["input"], plan["output"]
    print(f"{plan['operation']}: reads {read['shards']} shards, {read['samples']} samples, {format_size(read['bytes'])}")
    for stage in plan["stages"]:
        print(f"  {stage['name']:<12} {'?' if stage['tasks'] is None else stage['tasks']} tasks")
    if written["shards"] is not None:
        print(f"  writes {written['shards']} objects")
    for warning in plan["warnings"]:
        session.note(f"{session.program}: warning: {warning}")


@contextmanager
def _meter(session: Session, job: Job) -> Iterator[Callable[[Job], None]]:
    if session.as_json or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[tasks]}", markup=False),
        TextColumn("{task.fields[samples]} samples", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TextColumn("{task.fields[eta]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(f"{job.operation} {job.state}", total=None, tasks="", samples=0, rate="", eta="")
        begun: list[tuple[float, int]] = []

        def show(now: Job) -> None:
            done, total = now.progress.tasks.done, now.progress.tasks.total
            moved = now.progress.bytes_in + now.progress.bytes_out
            begun.append((progress.get_time(), moved)) if now.state == "running" and not begun else None
            elapsed = progress.get_time() - begun[0][0] if begun else 0.0
            eta = now.progress.eta_s
            progress.update(
                bar,
                description=f"{now.operation} {now.state}",
                completed=done,
                total=total,
                tasks=f"{done}/{'?' if total is None else total}",
                samples=now.progress.samples,
                rate=f"{format_size((moved - begun[0][1]) / elapsed)}/s" if elapsed > 0.5 else "",
                eta="" if eta is None else f"{int(eta) // 3600}:{int(eta) // 60 % 60:02}:{int(eta) % 60:02} left",
            )

        yield show
