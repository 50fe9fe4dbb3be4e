"""The program `dfc`, and how it ends when something fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from dfc.cli import bench, cluster, jobs, listing, objects, registry, serve
from dfc.cli.operations import operation_commands
from dfc.cli.session import Exit, Session, exit_for
from dfc.errors import DfcError

# --- Base classes of the programs: expected errors end in a one-line message and an exit code, not in a traceback.


def _guarded(name: str, context: Any, invoke: Callable[[Any], Any]) -> Any:
    session: Session = context.obj if isinstance(context.obj, Session) else Session.from_environment()
    session.program = name
    context.obj = session
    try:
        return invoke(context)
    except BrokenPipeError:
        # Standard output was closed by its reader; the interpreter must not try to flush it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.OUTPUT_CLOSED) from None
    except KeyboardInterrupt:
        session.abort()
        session.note(f"{session.program}: interrupted")
        raise typer.Exit(Exit.INTERRUPTED) from None
    except (DfcError, OSError) as error:
        session.print_error(error)
        raise typer.Exit(exit_for(error)) from None
    finally:
        session.close()


class ProgramGroup(TyperGroup):
    """The base of `dfc`: a program with the registered commands, and one for every operation of jobs."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in operation_commands():
            if command.name in self.commands:
                raise ValueError(f"dfc has a command {command.name!r} already; the operation needs another name")
            self.add_command(command)

    def invoke(self, ctx: Any) -> Any:
        return _guarded("dfc", ctx, super().invoke)


class ProgramCommand(TyperCommand):
    """The base of `tarshards`: a program that is one command."""

    def invoke(self, ctx: Any) -> Any:
        return _guarded("tarshards", ctx, super().invoke)


# --- The program `dfc` with its commands. Modules that are slow to import are imported by the commands that need them.

EPILOG = (
    "Remote names are bucket/object, object (in the bucket 'default') or a full URL; shard specs work wherever objects are "
    "named: 'train-{000000..000146}.tar', 'train-@000147.tar', 'train-*.tar', 'folder/'. DFC_URL names the cluster "
    "(http://127.0.0.1:8080, or several URLs of it, separated by commas), DFC_TOKEN its token. Exit codes: 0 success, 1 some "
    "failed, 2 usage, 3 not found, 4 unreachable, 5 checksum mismatch, 6 not allowed, 130 interrupted."
)


app = typer.Typer(
    name="dfc",
    cls=ProgramGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from dfc import __version__

        print(f"dfc {__version__}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """DFC: a distributed dataset web server for deep learning."""


for module in (objects, listing, jobs, bench, cluster, registry, serve):
    module.register(app)


def main() -> None:
    """The console script `dfc`."""
    # httpx has a command line of its own, and imports it with rich and Pygments if they are there: for commands that ask the
    # cluster that would be a fifth of the time until they ask. It goes on without what cannot be imported.
    missing: Any = None
    sys.modules.setdefault("httpx._main", missing)
    app()


if __name__ == "__main__":
    main()
