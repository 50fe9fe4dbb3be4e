"""The program `dfc` with its commands. Modules that are slow to import are imported by the commands that need them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from dfc.cli.commands import bench_input, buckets, download, jobs, listing, nodes, objects, registry, samples, upload
from dfc.cli.commands.cluster import group as cluster
from dfc.cli.program import ProgramGroup

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


for register in (
    upload.register,
    download.register,
    objects.register,
    listing.register,
    samples.register,
    buckets.register,
    jobs.register,
    bench_input.register,
    cluster.register,
    registry.register,
    nodes.register,
):
    register(app)


def main() -> None:
    """The console script `dfc`."""
    # httpx has a command line of its own, and imports it with rich and Pygments if they are there: for commands that ask the
    # cluster that would be a fifth of the time until they ask. It goes on without what cannot be imported.
    missing: Any = None
    sys.modules.setdefault("httpx._main", missing)
    app()


if __name__ == "__main__":
    main()
