"""Options that several commands have, so that they are spelled and explained once."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line; errors too.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Take folders with all that is below them.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, max=64, help="Files at once.")]
Retries = Annotated[int, typer.Option("--retries", min=0, max=100, help="Tries after the first, with growing waits.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Transfer also what is there already with the same checksum.")]

JOBS = 4
RETRIES = 7
