"""`dfc serve`, `proxy`, `target`, `scheduler` and `config`: run nodes, and show their settings."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal, NoReturn

import typer

NODE_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("serve")(serve)
    for name, run in (("proxy", proxy), ("target", target), ("scheduler", scheduler)):
        app.command(name, context_settings=NODE_SETTINGS, add_help_option=False)(run)
    about = "Show the settings of nodes and where they come from, or print a sample file."
    config = typer.Typer(help=about, no_args_is_help=True)
    config.command("show", context_settings=NODE_SETTINGS)(config_show)
    config.command("sample")(config_sample)
    app.add_typer(config, name="config")


def serve(
    directory: Annotated[str, typer.Option("--dir", help="Directory for all data and state.")] = "dfc-data",
    host: Annotated[str, typer.Option(help="Address to listen on. Set a token for anything but loopback.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the proxy; 0 picks a free one.", min=0, max=65535)] = 8080,
    targets: Annotated[int | None, typer.Option(help="Number of targets (2 for a new directory).", min=1, max=64)] = None,
    disks: Annotated[
        int | None, typer.Option(help="Number of disks per target (1 for a new directory).", min=1, max=64)
    ] = None,
    advertise_host: Annotated[str, typer.Option(help="Host name for clients to use in redirects.")] = "",
) -> None:
    """Start a cluster on this machine: one proxy and its targets. Ctrl-C stops it.

    The nodes take their settings from DFC_… variables (`dfc config show`); with DFC_TOKEN set, writes need the token.
    """
    from dfc.config import load_settings
    from dfc.errors import OperatorError
    from dfc.supervisor import ServeOptions
    from dfc.supervisor import serve as run

    if host not in ("127.0.0.1", "::1", "localhost") and not os.environ.get("DFC_TOKEN"):
        print(f"WARNING: listening on {host} WITHOUT A TOKEN (DFC_TOKEN): anyone who can reach it can write.", file=sys.stderr)
    try:
        drain_s = load_settings("proxy", environment=os.environ).settings.drain_timeout_s
        options = ServeOptions(directory, host, port, targets, disks, advertise_host, drain_s)
        status = run(options, lambda text: print(text, flush=True))
    except OperatorError as error:
        print(f"dfc serve: {error.message}", file=sys.stderr)
        raise typer.Exit(2) from None
    raise typer.Exit(status)


def proxy(context: typer.Context) -> None:
    """Run one proxy node (try --help)."""
    _become("dfc.servers.proxy", context.args)


def target(context: typer.Context) -> None:
    """Run one target node (try --help)."""
    _become("dfc.servers.target", context.args)


def scheduler(context: typer.Context) -> None:
    """Run the Dask scheduler for a cluster's jobs (try --help)."""
    _become("dfc.engine.scheduler", context.args)


def _become(module: str, arguments: list[str]) -> NoReturn:
    """Replace this process with the node, so that signals and the exit status are the node's."""
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def config_show(
    context: typer.Context,
    role: Annotated[Literal["proxy", "target"], typer.Option(help="Which node's settings to show.")] = "proxy",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print each setting with its value and origin. Accepts the node's own flags, including --config FILE."""
    import json

    from dfc.errors import OperatorError
    from dfc.http.node import load_for, show_settings

    flags = list(context.args)
    if role == "target" and "--disks" not in flags and not os.environ.get("DFC_DISKS") and not flags:
        flags = ["--disks", "(none)"]
    try:
        loaded, _ = load_for(role, flags)
    except OperatorError as error:
        print(f"dfc config: {error.message}", file=sys.stderr)
        raise typer.Exit(2) from None
    rows = show_settings(loaded)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}}  {json.dumps(row['value']):<28}  {row['origin']}")


def config_sample() -> None:
    """Print a commented TOML file with every setting and its default."""
    from dfc.config import sample_toml

    print(sample_toml(), end="")
