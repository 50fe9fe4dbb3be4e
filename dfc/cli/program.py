"""Base classes of the programs: expected errors end in a one-line message and an exit code, not in a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dfc.cli.commands.operations import operation_commands
from dfc.cli.exits import Exit, exit_for
from dfc.cli.session import Session
from dfc.errors import DfcError


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
