"""The program `dfc`: its commands, and the one place where errors become lines on standard error and exit codes.

Modules that take long to import are imported by the commands that need them.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dfc.cli import buckets, cluster, download, listing, nodes, objects, upload
from dfc.cli.exits import Exit, exit_for
from dfc.cli.session import Session
from dfc.errors import DfcError

EPILOG = (
    "Remote names are bucket/object, object (in the bucket 'default') or a full URL; shard specs work wherever objects are "
    "named: 'train-{000000..000146}.tar', 'train-@000147.tar', 'train-*.tar', 'folder/'. DFC_URL names the cluster "
    "(http://127.0.0.1:8080), DFC_TOKEN its token. Exit codes: 0 done, 1 some failed, 2 usage, 3 not found, 4 cannot be "
    "reached, 5 checksum mismatch, 6 not allowed, 130 interrupted."
)


class ProgramGroup(TyperGroup):
    """Runs commands and ends the program as docs/cli.md says, without a traceback for what can be expected."""

    def invoke(self, ctx: Any) -> Any:
        session: Session = ctx.obj if isinstance(ctx.obj, Session) else Session.from_environment()
        ctx.obj = session
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Nobody reads standard output any more; the interpreter must not try to flush it at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.OUTPUT_CLOSED) from None
        except KeyboardInterrupt:
            session.abort()
            session.note("dfc: interrupted")
            raise typer.Exit(Exit.INTERRUPTED) from None
        except (DfcError, OSError) as error:
            session.print_error(error)
            raise typer.Exit(exit_for(error)) from None
        finally:
            session.close()


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


for commands in (upload, download, objects, listing, buckets, cluster, nodes):
    commands.register(app)


def main() -> None:
    """The console script `dfc`."""
    app()


if __name__ == "__main__":
    main()
