"""`dfc registry`: where the registry of a cluster is."""

from __future__ import annotations

import asyncio
import os
from enum import Enum
from typing import Annotated, Any

import typer

from dfc.cli.options import Json
from dfc.cli.session import session_of


class Place(Enum):
    """Where a registry may be."""

    etcd = "etcd"
    embedded = "embedded"


def register(app: typer.Typer) -> None:
    registry = typer.Typer(help="Move the registry of a cluster into etcd, and back.", no_args_is_help=True)
    registry.callback()(_registry)
    registry.command("move")(move)
    app.add_typer(registry, name="registry")


def _registry() -> None:
    """Move the registry of a cluster into etcd, and back."""


def move(
    context: typer.Context,
    to: Annotated[Place, typer.Option("--to", help="Into etcd, or into the directory of a proxy, which will be the only one.")],
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
    call = move_to_etcd if to is Place.etcd else move_to_file
    moved: MovedRegistry = asyncio.run(call(place, settings.etcd_urls, below))
    if as_json:
        session.print_json({"to": to.value, **moved._asdict()})
        return
    what = f"cluster {moved.cluster_id}, map version {moved.version}, {moved.nodes} nodes, {moved.buckets} buckets"
    if to is Place.etcd:
        given = ",".join(settings.etcd_urls)
        print(f"the registry is in etcd below {below} now: {what}. Start the proxy with etcd_urls = {given}")
    else:
        print(f"the registry is in {place} now: {what}. Start the proxy there, and no other one, without etcd_urls")
