"""Makes a command for every operation of jobs, such as `dfc reshuffle SRC DST --seed 1`, with a flag for each option.

Modules of operations are slow to import, so a command imports its own only when it is used and reads its help from the source.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, Final, get_args, get_origin

import typer
from typer.core import TyperCommand

import dfc
from dfc.cli.address import is_url
from dfc.cli.exits import UsageMistake
from dfc.cli.options import Json
from dfc.cli.session import session_of

HAS_COMMAND: Final = frozenset(("keys",))  # `dfc keys` lists too, see `dfc.cli.commands.listing`
_FOLDER: Final = Path(dfc.__file__).parent / "jobs" / "operations"
_ANY_OPTION: Final = "Any option of the operation; can be repeated."
_PATHS: Final = "The input and, last, the output, in which %06d stands for the number of a shard."


def operation_commands() -> Iterator[TyperCommand]:
    """The commands of all operations, except those that are part of another command."""
    return (OperationCommand(name) for name in _names() if name not in HAS_COMMAND)


class OperationCommand(TyperCommand):
    """A placeholder for the command of an operation, which is built when it is used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)

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

    found: dict[str, tuple[Any, Any]] = {
        "paths": (
            Annotated[list[str], typer.Argument(metavar="BUCKET/SHARDS... BUCKET/PATTERN", help=_PATHS)],
            Parameter.empty,
        )
    }
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
    from dfc.cli.commands.following import run_job
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
        try:
            yield json.loads(text)
        except ValueError:
            pass
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


def _names() -> tuple[str, ...]:
    """The names of the modules, without importing them: what they import would make every command slow to start."""
    return tuple(sorted(module.name for module in iter_modules([str(_FOLDER)])))


def _docstring(name: str) -> str:
    """The docstring of the operation's module."""
    path = _FOLDER / f"{name}.py"
    path = path if path.exists() else _FOLDER / name / "__init__.py"
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
