"""`dfc job`: submit, follow, list, show and cancel jobs, and say what jobs can do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dfc.cli import operations as jobviews
from dfc.cli.operations import conclude, follow, parse_pairs, run_job
from dfc.cli.session import Json, UsageMistake, session_of
from dfc.limits import format_size

if TYPE_CHECKING:
    from dfc.client import Job, OperationInfo

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The id of the job, as printed when it was submitted.")]
SpecFile = Annotated[str, typer.Argument(metavar="[SPEC]", help="A file with the job as JSON, or - for standard input.")]
Operation = Annotated[str, typer.Option("--operation", help="The operation, instead of a file.")]
Input = Annotated[
    list[str] | None, typer.Option("--input", "-i", metavar="BUCKET/SHARDS", help="What to read; may be repeated.")
]
Output = Annotated[str, typer.Option("--output", metavar="BUCKET/PATTERN", help="What to write.")]
Options = Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=JSON", help="An option of the operation.")]
Label = Annotated[str, typer.Option("--label", help="A description of the job, for people.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace objects that match the pattern.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Print the plan and do not run the job.")]


def register(app: typer.Typer) -> None:
    job = typer.Typer(help="Submit, follow, list and cancel jobs.", no_args_is_help=True)
    job.command("run", help="Run a job and follow it to its end; Ctrl-C cancels it.")(_starting(detach=False))
    job.command("submit", help="Submit a job and print its id.")(_starting(detach=True))
    job.command("ls")(list_jobs)
    job.command("show")(show)
    job.command("watch")(watch)
    job.command("cancel")(cancel)
    job.command("spec")(spec_of)
    job.command("operations")(operations)
    jobviews.register(job)
    app.add_typer(job, name="job")


def _starting(*, detach: bool) -> Callable[..., None]:
    """The command that submits a job and, unless `detach`, follows it."""

    def start(
        context: typer.Context,
        spec: SpecFile = "",
        operation: Operation = "",
        source: Input = None,
        output: Output = "",
        option: Options = None,
        label: Label = "",
        overwrite: Overwrite = False,
        dry_run: DryRun = False,
        as_json: Json = False,
    ) -> None:
        session = session_of(context, as_json=as_json)
        body = _spec(spec, operation, source, output, option, label, overwrite)
        run_job(session, None, body, detach=detach, dry_run=dry_run or bool(body.get("dry_run")))

    return start


def _spec(
    file: str, operation: str, sources: list[str] | None, output: str, options: list[str] | None, label: str, overwrite: bool
) -> dict[str, Any]:
    """Build the job from a file, to which flags add, or from flags alone."""
    if file:
        if operation or sources or output:
            raise UsageMistake("give either a file or --operation, --input and --output, not both")
        spec = _read(file)
    else:
        from dfc.client import job_spec

        if not (operation and sources and output):
            raise UsageMistake("give a file with the job, or --operation, --input and --output")
        spec = job_spec(operation, sources if len(sources) > 1 else sources[0], output)
    if options:
        given = spec.get("options")
        if not isinstance(given, dict | None):
            raise UsageMistake(f"options in {file} must be a JSON object, so that --option can add to it")
        spec["options"] = {**(given or {}), **parse_pairs(options)}
    if label:
        spec["label"] = label
    if overwrite:
        spec["overwrite"] = True
    return spec


def _read(file: str) -> dict[str, Any]:
    try:
        spec = json.loads(sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes())
    except (ValueError, RecursionError) as problem:
        raise UsageMistake(f"{file} is not JSON: {problem}") from None
    if not isinstance(spec, dict):
        raise UsageMistake(f"{file} is not a job: it must be a JSON object with operation, input, output and options")
    return spec


def list_jobs(
    context: typer.Context,
    state: Annotated[str, typer.Option("--state", help="Only jobs in these states, such as running,queued.")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many, newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    session = session_of(context, as_json=as_json)
    states: Any = tuple(part for part in state.split(",") if part)
    for number, job in enumerate(session.client().jobs.list(states=states, page=min(limit, 1000))):
        if number >= limit:
            break
        if as_json:
            session.print_json(job)
        else:
            tasks = job.progress.tasks
            done = f"{tasks.done}/{'?' if tasks.total is None else tasks.total}"
            print(f"{job.id}  {job.created[:19]}Z  {job.state:<10}  {done:>13}  {job.operation:<10}  {job.label}".rstrip())


def show(context: typer.Context, job_id: JobId, as_json: Json = False) -> None:
    """Show one job."""
    session = session_of(context, as_json=as_json)
    job = session.client().jobs.get(job_id)
    session.print_json(job) if as_json else _print(job)


def _print(job: Job) -> None:
    progress = job.progress
    total = "?" if progress.tasks.total is None else progress.tasks.total
    rows: list[tuple[str, Any]] = [
        ("operation", job.operation),
        ("label", job.label),
        ("bucket", job.bucket),
        ("state", job.state),
        ("created", job.created),
        ("started", job.started),
        ("finished", job.finished),
        ("tasks", f"{progress.tasks.done} of {total}"),
        ("samples", progress.samples),
        ("read", format_size(progress.bytes_in)),
        ("written", format_size(progress.bytes_out)),
    ]
    if progress.eta_s is not None:
        rows.append(("left", f"{progress.eta_s:.0f} s"))
    if job.output is not None:
        rows += [("objects", job.output.shards), ("digest", job.output.digest)]
    if job.error is not None:
        rows.append(("error", f"{job.error.code}: {job.error.message}"))
    rows += [("warning", warning) for warning in job.warnings]
    print(job.id)
    for name, value in rows:
        if value not in (None, ""):
            print(f"  {name:<9} {value}")


def spec_of(context: typer.Context, job_id: JobId) -> None:
    """Print the spec of a job as JSON, which `dfc job run -` takes."""
    print(json.dumps(session_of(context).client().jobs.spec(job_id), indent=2))


def operations(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[OPERATION]", help="Show the options of this one.")] = "",
    as_json: Json = False,
) -> None:
    """List the operations that jobs can have, or the options of one."""
    session = session_of(context, as_json=as_json)
    found = [each for each in session.client().operations() if name in ("", each.name)]
    if not found:
        raise UsageMistake(f"there is no operation {name}; `dfc job operations` lists them")
    for each in found:
        if as_json:
            session.print_json(each)
        elif name:
            _print_operation(each)
        else:
            print(f"{each.name:<10}  {each.summary}")


def _print_operation(operation: OperationInfo) -> None:
    from dfc.jobs.request import type_words

    print(operation.description)
    for setting in operation.settings:
        print(f"For {setting.when} it needs the setting {setting.name}, which is {'on' if setting.on else 'off'}.")
    required = operation.options["required"]
    for name, option in operation.options["properties"].items():
        default = option.get("default")
        said = "required" if name in required else "" if default is None else f"default {json.dumps(default)}"
        print(f"\n{name}  ({type_words(option)}{said and f'; {said}'})")
        print(f"    {option['description']}")
        print(f"    Example: {json.dumps(option['examples'][0], ensure_ascii=False)}")


def watch(context: typer.Context, job_id: JobId, as_json: Json = False) -> None:
    """Follow a job to its end; Ctrl-C leaves it running."""
    session = session_of(context, as_json=as_json)
    client = session.client()
    job = client.jobs.get(job_id)
    if as_json:
        for job in client.jobs.events(job_id):
            session.print_json(job)
        raise typer.Exit(0 if job.state == "succeeded" else 1)
    raise typer.Exit(conclude(session, client, follow(session, client, job)))


def cancel(context: typer.Context, job_id: JobId, as_json: Json = False) -> None:
    """Cancel a job and discard its outputs."""
    session = session_of(context, as_json=as_json)
    job = session.client().jobs.cancel(job_id)
    session.print_done(job, f"{job.id} {job.state}")
