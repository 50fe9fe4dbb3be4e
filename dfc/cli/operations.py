"""A command for every operation of jobs, and how a job is followed.

A command such as `dfc reshuffle SRC DST --seed 1` has a flag for each option of its operation.
Modules of operations are slow to import, so a command imports its own only when it is used and reads its help from the source.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import Parameter, Signature
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin

import typer
from typer.core import TyperCommand

import dfc
from dfc.cli.session import Exit, Json, Session, UsageMistake, is_url, plain, session_of
from dfc.errors import DfcError
from dfc.limits import format_size

if TYPE_CHECKING:
    from rich.console import Console

    from dfc.client import Client, Job
    from dfc.wire.jobs import JobStage, JobTask

HAS_COMMAND: Final = frozenset(("keys",))  # `dfc keys` lists too, see `dfc.cli.listing`
_FOLDER: Final = Path(dfc.__file__).parent / "jobs" / "operations"
_ANY_OPTION: Final = "Any option of the operation; can be repeated."
_PATHS: Final = "The input and, last, the output, in which %06d stands for the number of a shard."


def operation_commands() -> Iterator[TyperCommand]:
    """The commands of all operations, except those that are part of another command."""
    names = sorted(module.name for module in iter_modules([str(_FOLDER)]))  # not imported, which would be slow
    return (OperationCommand(name) for name in names if name not in HAS_COMMAND)


class OperationCommand(TyperCommand):
    """A placeholder for the command of an operation, which is built when it is used."""

    @property
    def help(self) -> str | None:
        """The docstring of the operation, read from its source when help is shown."""
        return _docstring(self.name or "")

    @help.setter
    def help(self, text: str | None) -> None:
        pass

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        assert self.name is not None
        return _build_command(self.name).make_context(info_name, args, parent=parent, **extra)


def _build_command(name: str) -> Any:
    """Build the command, with a flag for each field of the operation's options. The last argument is the destination."""

    def run(context: typer.Context, **values: Any) -> None:
        run_operation(context, name, values)

    parameters = {"context": (typer.Context, Parameter.empty), **_parameters(name)}
    kind = Parameter.POSITIONAL_OR_KEYWORD
    run.__annotations__ = {each: annotation for each, (annotation, _) in parameters.items()}
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(each, kind, default=default, annotation=annotation) for each, (annotation, default) in parameters.items()]
    )
    app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
    app.command(name, help=_docstring(name), no_args_is_help=True)(run)
    return typer.main.get_command(app)


def _parameters(name: str) -> dict[str, tuple[Any, Any]]:
    """The annotation and default of each parameter."""
    import msgspec

    from dfc.jobs.operations import operation

    paths = Annotated[list[str], typer.Argument(metavar="BUCKET/SHARDS... BUCKET/PATTERN", help=_PATHS)]
    found: dict[str, tuple[Any, Any]] = {"paths": (paths, Parameter.empty)}
    for field in msgspec.structs.fields(operation(name).Options):
        flag = "--" + field.encode_name.replace("_", "-")
        kind, about = _kind_and_description(field.type)
        if field.required:
            about += " (required)"
        elif field.default is not msgspec.NODEFAULT and field.default is not None and kind is not bool:
            about += f" (default {field.default})"
        if kind is bool:
            annotation: Any = Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=about)]
        else:
            annotation = Annotated[str | None, typer.Option(flag, metavar=describe_type(kind), help=about)]
        found[f"option_{field.name}"] = (annotation, None)
    return {
        **found,
        "option": (Annotated[list[str] | None, typer.Option("--option", "-o", metavar="NAME=JSON", help=_ANY_OPTION)], None),
        "overwrite": (Annotated[bool, typer.Option("--overwrite", help="Replace objects that match the pattern.")], False),
        "label": (Annotated[str, typer.Option("--label", help="A description of the job, for people.")], ""),
        "detach": (Annotated[bool, typer.Option("--detach", "-d", help="Print the job's id and do not wait.")], False),
        "dry_run": (Annotated[bool, typer.Option("--dry-run", "-n", help="Print the plan and do not run the job.")], False),
        "as_json": (Json, False),
    }


def _kind_and_description(annotation: Any) -> tuple[Any, str]:
    """The type of an option, and the description in its `Meta`."""
    import msgspec

    if not hasattr(annotation, "__metadata__"):
        return annotation, ""
    said = [each.description for each in annotation.__metadata__ if isinstance(each, msgspec.Meta) and each.description]
    return annotation.__origin__, said[0] if said else ""


def run_operation(context: typer.Context, name: str, values: dict[str, Any]) -> None:
    """Run the command of an operation. `values` are the values of its flags; those of options are under `option_NAME`."""
    from dfc.client import job_spec
    from dfc.jobs.operations import takes_many

    session = session_of(context, as_json=values["as_json"])
    *sources, destination = values["paths"]
    many = takes_many(name)
    if not sources or (len(sources) > 1 and not many):
        raise UsageMistake(
            f"dfc {name} needs {'sources' if many else 'one source'} and a destination: BUCKET/SHARDS BUCKET/PATTERN"
        )
    bases, addresses = zip(*(_without_base(path) for path in (*sources, destination)), strict=True)
    if len(set(bases)) != 1:
        raise UsageMistake("a job reads and writes one cluster: give all addresses with the same URL, or all without one")
    options = given_options(name, values)
    source: Any = list(addresses[:-1]) if many else addresses[0]
    spec = job_spec(name, source, addresses[-1], overwrite=values["overwrite"], label=values["label"])
    run_job(session, bases[0], {**spec, "options": options}, detach=values["detach"], dry_run=values["dry_run"])


def _without_base(address: str) -> tuple[str | None, str]:
    if not is_url(address):
        return None, address
    scheme, _, rest = address.partition("://")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}", path


def given_options(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Collect the options of a job: from its flags, then from `--option`."""
    import msgspec

    from dfc.jobs.operations import operation

    options = {}
    for field in msgspec.structs.fields(operation(name).Options):
        value = values.get(f"option_{field.name}")
        if value is not None:
            options[field.encode_name] = read_option(field.encode_name, field.type, value)
    options.update(parse_pairs(values.get("option") or ()))
    return options


def parse_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `name=JSON` pairs; a value that is not JSON is taken as text."""
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageMistake(f"an option must be NAME=VALUE, not {pair!r}")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def read_option(name: str, kind: Any, text: Any) -> Any:
    """Convert a value from the command line to the option's type: JSON, a plain word or number, `a,b,c` for a list, `a=1,b=2`
    for an object, `BUCKET/SHARDS` for an input. UsageMistake if none of them fits."""
    import msgspec

    for value in _readings(text):
        try:
            converted = msgspec.convert(value, kind, strict=False)
        except (msgspec.ValidationError, TypeError):
            continue
        return msgspec.to_builtins(converted) if not isinstance(converted, str) else converted
    raise UsageMistake(f"--{name.replace('_', '-')} must be {describe_type(kind)}, not {text!r}")


def _readings(text: Any) -> Iterator[Any]:
    """The possible meanings of a text, likeliest first."""
    if not isinstance(text, str):
        yield text
        return
    if text[:1] in ("{", "[", '"'):
        with suppress(ValueError):
            yield json.loads(text)
    yield text
    parts = text.split(",")
    yield parts
    if all("=" in part for part in parts):
        yield dict(part.split("=", 1) for part in parts)
    bucket, slash, shards = text.partition("/")
    if slash:
        yield {"bucket": bucket, "shards": shards}


def describe_type(kind: Any) -> str:
    """Describe the type of an option for help and errors."""
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        return describe_type(arguments[0])
    if origin is not None and str(origin).endswith("Literal"):
        return "|".join(map(str, arguments))
    if origin in (list, tuple, set, frozenset):
        return f"{describe_type(arguments[0])},…" if arguments else "list"
    if origin is dict:
        return "name=value,…"
    if arguments:
        return "|".join(describe_type(each) for each in arguments if each is not type(None))
    return {int: "int", float: "number", str: "text", bool: "yes|no"}.get(kind, "JSON")


def _docstring(name: str) -> str:
    """The docstring of the operation's module."""
    path = _FOLDER / f"{name}.py"
    path = path if path.exists() else _FOLDER / name / "__init__.py"
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


# --- Submits a job and follows it: a progress bar on terminals, else JSON or nothing. Ctrl-C cancels a job in the foreground.


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
        session.print_done(job, job.id)
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
    from dfc.jobs.records import REPORTING, found_in, is_of_job, report_name
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


# --- `dfc job tasks` and `dfc job log`: what a job does, and did.

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
