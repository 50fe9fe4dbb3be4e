"""`dfc serve`, `proxy`, `target`, `scheduler`, `config` and `registry`: run nodes, show their settings, move their registry."""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import Annotated, Any, Literal, NoReturn

import typer

from dfc.cli.options import Json
from dfc.cli.session import session_of

NODE_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


class RegistryPlace(Enum):
    """Where a registry may be."""

    etcd = "etcd"
    embedded = "embedded"


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command("serve")(serve)
    for role in ("proxy", "target"):
        app.command(role, context_settings=NODE_SETTINGS, add_help_option=False, help=f"Run one {role} node (try --help).")(
            {"proxy": proxy, "target": target}[role]
        )
    about = "Run the Dask scheduler for a cluster's jobs (try --help)."
    app.command("scheduler", context_settings=NODE_SETTINGS, add_help_option=False, help=about)(scheduler)
    config = typer.Typer(
        help="Show the settings of nodes and where they come from, or print a sample file.", no_args_is_help=True
    )
    config.command("show", context_settings=NODE_SETTINGS)(config_show)
    config.command("sample")(config_sample)
    app.add_typer(config, name="config")
    registry = typer.Typer(help="Move the registry of a cluster into etcd, and back.", no_args_is_help=True)
    registry.callback()(_registry)
    registry.command("move")(registry_move)
    app.add_typer(registry, name="registry")


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
    from dfc.errors import OperatorError
    from dfc.supervisor import ServeOptions
    from dfc.supervisor import serve as run

    if host not in ("127.0.0.1", "::1", "localhost") and not os.environ.get("DFC_TOKEN"):
        print(f"WARNING: listening on {host} WITHOUT A TOKEN (DFC_TOKEN): anyone who can reach it can write.", file=sys.stderr)
    drain = os.environ.get("DFC_DRAIN_TIMEOUT_S", "30")
    options = ServeOptions(directory, host, port, targets, disks, advertise_host, float(drain))
    try:
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
    from dfc.http.run import load_for, show_settings

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


def _registry() -> None:
    """Move the registry of a cluster into etcd, and back."""


def registry_move(
    context: typer.Context,
    to: Annotated[
        RegistryPlace, typer.Option("--to", help="Into etcd, or into the directory of a proxy, which will be the only one.")
    ],
    directory: Annotated[
        str | None, typer.Option("--dir", metavar="DIR", help="The proxy's directory.", show_default="the setting dir")
    ] = None,
    urls: Annotated[
        str | None,
        typer.Option("--etcd-urls", metavar="URLS", help="The members of etcd.", show_default="the setting etcd_urls"),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--etcd-prefix", metavar="PREFIX", help="What its keys begin with.", show_default="the setting etcd_prefix"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Move the registry of a cluster into etcd, or back, while all its proxies are stopped.

    Run it on the machine of the proxy. Targets may go on: they serve reads meanwhile. If it is interrupted, run it again: until
    it is done, no proxy starts with what is half there. Jobs must have ended.
    """
    import asyncio

    from dfc.config import load_settings
    from dfc.errors import OperatorError
    from dfc.registry.moving import MovedRegistry, move_to_etcd, move_to_file

    session = session_of(context, as_json=as_json)
    flags: dict[str, Any] = {"dir": directory, "etcd_urls": urls, "etcd_prefix": prefix}
    settings = load_settings("proxy", file=os.environ.get("DFC_CONFIG"), environment=os.environ, flags=flags).settings
    if not settings.etcd_urls:
        raise OperatorError("say where etcd is: --etcd-urls http://HOST:2379")
    place = os.path.abspath(settings.dir or "dfc-data")
    below = settings.etcd_prefix if settings.etcd_prefix.endswith("/") else settings.etcd_prefix + "/"
    call = move_to_etcd if to is RegistryPlace.etcd else move_to_file
    moved: MovedRegistry = asyncio.run(call(place, settings.etcd_urls, below))
    if as_json:
        session.print_json({"to": to.value, **moved._asdict()})
        return
    what = f"cluster {moved.cluster_id}, map version {moved.version}, {moved.nodes} nodes, {moved.buckets} buckets"
    if to is RegistryPlace.etcd:
        given = ",".join(settings.etcd_urls)
        print(f"the registry is in etcd below {below} now: {what}. Start the proxy with etcd_urls = {given}")
    else:
        print(f"the registry is in {place} now: {what}. Start the proxy there, and no other one, without etcd_urls")
