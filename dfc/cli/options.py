"""Command-line options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print results and errors as JSON, one value per line.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Include folders and everything below them.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, max=64, help="Number of files to process at once.")]
Retries = Annotated[int, typer.Option("--retries", min=0, max=100, help="Number of retries, with increasing delays.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Also transfer files that already exist with the same checksum.")]

JOBS = 4
RETRIES = 7
