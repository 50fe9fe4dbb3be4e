"""`dfc job tasks` and `dfc job log`: what a job does, and did."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dfc.cli.options import Json
from dfc.cli.session import plain, session_of
from dfc.units import format_size

if TYPE_CHECKING:
    from rich.console import Console

    from dfc.wire.jobs import JobStage, JobTask

WIDTH: Final = 160  # of a table that is not for a terminal
SLOWEST: Final = 20
COUNTED: Final = frozenset(("tasks", "waiting", "running", "done", "failed", "try", "seconds", "read", "written", "samples"))
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The id of the job.")]
Stage = Annotated[str, typer.Option("--stage", help="Only tasks of this stage.")]
State = Annotated[str, typer.Option("--state", help="Only tasks in this state: running, done or failed.")]
Slowest = Annotated[bool, typer.Option("--slowest", help="The slowest tasks, the slowest first.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Show at most so many tasks.")]


def register(job: typer.Typer) -> None:
    job.command("tasks")(tasks)
    job.command("log")(log)


def tasks(
    context: typer.Context,
    job_id: JobId,
    stage: Stage = "",
    state: State = "",
    slowest: Slowest = False,
    limit: Limit = SLOWEST,
    as_json: Json = False,
) -> None:
    """Show the stages of a job, and its tasks as far as they are known: running ones, the last that ended, the slowest."""
    session = session_of(context, as_json=as_json)
    found = session.client().jobs.tasks(job_id, stage=stage, state=state, slowest=slowest, limit=limit)
    if as_json:
        session.print_json(found)
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    _print_table(console, [_stage_row(each) for each in found.stages])
    if found.tasks:
        console.print()
        _print_table(console, [_task_row(each) for each in found.tasks])
    if found.next_token is not None:
        session.note(f"there are more: --limit, --stage and --state choose others than the first {limit}")
    if not found.complete:
        session.note("some of what this job did is not known any more")


def _stage_row(stage: JobStage) -> dict[str, Any]:
    return {
        "stage": stage.stage,
        "tasks": "?" if stage.total is None else stage.total,
        "waiting": "?" if stage.waiting is None else stage.waiting,
        "running": stage.running,
        "done": stage.done,
        "failed": stage.failed,
        "retries": stage.retries,
        "samples": stage.samples,
        "read": format_size(stage.bytes_in),
        "written": format_size(stage.bytes_out),
    }


def _task_row(task: JobTask) -> dict[str, Any]:
    return {
        "task": f"{task.stage} {task.number}",
        "state": task.error or task.state,
        "on": task.worker or task.node or "",
        "try": task.tries,
        "began": task.started[:19] + "Z",
        "seconds": f"{task.seconds:.1f}",
        "samples": task.samples,
        "read": format_size(task.bytes_in),
        "written": format_size(task.bytes_out),
        "what": task.label,
    }


def _print_table(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    if not rows:
        console.print("no stages are known")
        return
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, justify="right" if column in COUNTED else "left", overflow="fold", no_wrap=column == "task")
    for row in rows:
        table.add_row(*(escape(plain(str(value))) for value in row.values()))
    console.print(table)


def log(context: typer.Context, job_id: JobId, as_json: Json = False) -> None:
    """Print the log of a job: retries, warnings and errors, the oldest first; at most its last 1,000 lines."""
    session = session_of(context, as_json=as_json)
    found = session.client().jobs.log(job_id)
    if as_json:
        session.print_json(found)
        return
    for line in found.lines:
        code = f"{line.code}: " if line.code else ""
        print(f"{line.time[:23]}Z  {line.level:<7}  {plain(code + line.message)}")
    if not found.complete:
        session.note("some of what this job did is not known any more")
