"""`dfc registry`: move the registry of a cluster into etcd and back, copy it, and make it anew from what is left of it."""

from __future__ import annotations

import os
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dfc.cli.session import Json, Session, session_of

if TYPE_CHECKING:
    from dfc.config import Settings
    from dfc.placement.map import ClusterMap
    from dfc.registry.changes import RegistryState
    from dfc.registry.gateway import EtcdPlace
    from dfc.registry.offline import MovedRegistry

Directory = Annotated[
    str | None, typer.Option("--dir", metavar="DIR", help="The proxy's directory.", show_default="the setting dir")
]
EtcdUrls = Annotated[
    str | None, typer.Option("--etcd-urls", metavar="URLS", help="The members of etcd.", show_default="the setting etcd_urls")
]
EtcdPrefix = Annotated[
    str | None,
    typer.Option("--etcd-prefix", metavar="PREFIX", help="What its keys begin with.", show_default="the setting etcd_prefix"),
]
Replace = Annotated[bool, typer.Option("--replace", help="Put a registry aside that is there already.")]
Incomplete = Annotated[
    bool, typer.Option("--incomplete", help="Go on although targets do not answer; what only they know is lost.")
]
LEASE_S_MAX: Final = 12.0  # a target has its lease for 0.8 × `down_after_s` after the last proxy has ended
_ABOUT: Final = "Move the registry of a cluster into etcd and back, copy it, and make it anew from what is left of it."


class RegistryPlace(Enum):
    """Where a registry may be."""

    etcd = "etcd"
    embedded = "embedded"


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    registry = typer.Typer(help=_ABOUT, no_args_is_help=True)
    for name, command in (("move", move), ("backup", backup), ("restore", restore), ("recover", recover)):
        registry.command(name)(command)
    app.add_typer(registry, name="registry")


def move(
    context: typer.Context,
    to: Annotated[
        RegistryPlace, typer.Option("--to", help="Into etcd, or into the directory of a proxy, which will be the only one.")
    ],
    directory: Directory = None,
    urls: EtcdUrls = None,
    prefix: EtcdPrefix = None,
    as_json: Json = False,
) -> None:
    """Move the registry of a cluster into etcd, or back, while all its proxies are stopped.

    Run it on the machine of the proxy. Targets may go on: they serve reads meanwhile. If it is interrupted, run it again: until
    it is done, no proxy starts with what is half there. Jobs must have ended.
    """
    import asyncio

    from dfc.errors import OperatorError
    from dfc.registry.offline import move_to_etcd, move_to_file

    session = session_of(context, as_json=as_json)
    place, etcd = _places(directory, urls, prefix)
    if etcd is None:
        raise OperatorError("say where etcd is: --etcd-urls http://HOST:2379")
    call = move_to_etcd if to is RegistryPlace.etcd else move_to_file
    _print(session, asyncio.run(call(place, etcd)), place, etcd if to is RegistryPlace.etcd else None)


def backup(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="The file to write; one that is there is replaced.", show_default=False)],
    directory: Directory = None,
    urls: EtcdUrls = None,
    prefix: EtcdPrefix = None,
    as_json: Json = False,
) -> None:
    """Copy the registry of a cluster into a file, while its proxies go on.

    The copy has nodes, disks and buckets, but neither objects nor jobs. With etcd_urls it is the one in etcd, otherwise that in
    the proxy's directory; then run it on that machine.
    """
    import asyncio
    import time

    from dfc.filesystem import FileSystem
    from dfc.registry.offline import read_etcd_state, state_in_file, write_backup

    session = session_of(context, as_json=as_json)
    place, etcd = _places(directory, urls, prefix)
    state = state_in_file(place) if etcd is None else asyncio.run(read_etcd_state(etcd))
    write_backup(file, state, time.time(), FileSystem())
    session.print_done({"file": file, **_facts(state)}, f"{file}: {_words(**_facts(state))}")


def restore(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="A file that `dfc registry backup` wrote.", show_default=False)],
    directory: Directory = None,
    urls: EtcdUrls = None,
    prefix: EtcdPrefix = None,
    replace: Replace = False,
    incomplete: Incomplete = False,
    as_json: Json = False,
) -> None:
    """Make the registry of a cluster anew from a backup, and from what its targets know, while all its proxies are stopped.

    The targets are asked for their maps, so let them run: what they know is newer than the backup. The registry is made in etcd
    if etcd_urls is set, otherwise in the proxy's directory. When the proxy is started, all copies of objects are compared
    first; until that is done, objects with several copies are not read. Jobs are forgotten.
    """
    from dfc.registry.offline import read_backup

    session = session_of(context, as_json=as_json)
    _recover(session, [read_backup(file)], [], _places(directory, urls, prefix), replace, incomplete)


def recover(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…",
            help="The URL of a target, the directory of a disk, or a backup. One will do: all targets that it names are asked.",
            show_default=False,
        ),
    ],
    directory: Directory = None,
    urls: EtcdUrls = None,
    prefix: EtcdPrefix = None,
    replace: Replace = False,
    incomplete: Incomplete = False,
    as_json: Json = False,
) -> None:
    """Make the registry of a cluster anew from what its targets and their disks know, while all its proxies are stopped.

    Every target has the newest map in memory, and keeps it on its disks. Otherwise like `dfc registry restore`. Buckets that
    were created or deleted in the last second before everything stopped may be gone, or back.
    """
    session = session_of(context, as_json=as_json)
    targets = [source for source in sources if source.startswith(("http://", "https://"))]
    known = [_read_source(source) for source in sources if source not in targets]
    _recover(session, known, targets, _places(directory, urls, prefix), replace, incomplete)


def _read_source(source: str) -> RegistryState:
    """What a directory or a backup tells. OperatorError."""
    from dfc.errors import OperatorError
    from dfc.registry.messages import read_map
    from dfc.registry.offline import read_backup, state_of

    if not os.path.exists(source) and source.rpartition(":")[2].isdecimal():
        raise OperatorError(f"there is no file {source}; if it is a target, say http://{source}")
    if not os.path.isdir(source):
        return read_backup(source)
    kept = read_map(source)
    if kept is None:
        raise OperatorError(f"there is no map of a cluster in {source}: is it the directory of a disk?")
    return state_of(kept)


def _recover(
    session: Session,
    known: list[RegistryState],
    targets: list[str],
    places: tuple[str, EtcdPlace | None],
    replace: bool,
    incomplete: bool,
) -> None:
    import asyncio

    from dfc.registry.offline import recover_to_etcd, recover_to_file

    place, etcd = places
    known = _with_targets(session, known, targets, incomplete)
    if etcd is None:
        made = recover_to_file(place, known, replaces=replace, note=session.note)
    else:
        made = asyncio.run(recover_to_etcd(etcd, place, known, replaces=replace, note=session.note))
    _print(session, made, place, etcd)
    session.note("objects with several copies can be read when `dfc cluster status` shows no disk out of sync any more")


def _with_targets(session: Session, known: list[RegistryState], urls: list[str], incomplete: bool) -> list[RegistryState]:
    """What is known, and the maps of these targets and of all that the newest map names. OperatorError if one of those does not
    answer, unless the answers may be `incomplete`: it may know something newer."""
    from dfc.errors import DfcError, OperatorError
    from dfc.registry.offline import newest_of, state_of

    known = [*known, *(state_of(_own_map(session, url)) for url in urls)]
    asked = {url.rstrip("/") for url in urls}
    silent: dict[str, str] = {}
    while True:
        newest = newest_of(known).map
        waiting = {node.url.rstrip("/"): node.id for node in newest.nodes if node.role == "target"}
        if not waiting.keys() - asked:
            break
        for url in sorted(waiting.keys() - asked):
            asked.add(url)
            try:
                announced = _own_map(session, url)
            except DfcError as error:
                silent[url] = f"target {waiting[url]} at {url} does not tell what it knows: {error.message}"
                continue
            if announced.cluster_id == newest.cluster_id:
                known.append(state_of(announced))
            else:
                silent[url] = f"target {waiting[url]} is not at {url}: a node of cluster {announced.cluster_id} is"
    missing = [silent[url] for url in sorted(silent.keys() & waiting.keys())]
    for each in missing:
        session.note(each)
    if missing and not incomplete:
        raise OperatorError(
            f"{len(missing)} of {len(waiting)} targets do not tell what they know, and it may be newer: start them, or go on"
            " without them (--incomplete)"
        )
    return known


def _own_map(session: Session, url: str) -> ClusterMap:
    """The map of a target, once no proxy grants it a lease any more: another proxy would go on with the registry that is to be
    replaced. OperatorError if one does; DfcError."""
    import time

    from dfc.errors import OperatorError

    client, until_s, announced = session.client(url), time.monotonic() + LEASE_S_MAX, False
    while True:
        facts = client.health(patient=False)
        if facts.get("role") != "target":
            raise OperatorError(f"{url} is no target, but a {facts.get('role', 'node of another kind')}: name a target")
        if not facts.get("leased"):
            return client.own_map()
        if time.monotonic() > until_s:
            raise OperatorError(
                f"the target at {url} has a lease, so a proxy of this cluster runs, or did a moment ago: stop all proxies first"
            )
        if not announced:
            session.note(f"waiting until the lease of the target at {url} has run out")
            announced = True
        time.sleep(0.2)


def _places(directory: str | None, urls: str | None, prefix: str | None) -> tuple[str, EtcdPlace | None]:
    """The proxy's directory, and the place in etcd if one is set."""
    from dfc.config import load_settings
    from dfc.errors import OperatorError
    from dfc.registry.gateway import EtcdPlace

    if urls == "":
        raise OperatorError("--etcd-urls is empty: leave it out if the registry is in the proxy's directory")
    flags: dict[str, Any] = {"dir": directory, "etcd_urls": urls, "etcd_prefix": prefix}
    file = os.environ.get("DFC_CONFIG")
    settings: Settings = load_settings("proxy", file=file, environment=os.environ, flags=flags).settings
    return os.path.abspath(settings.dir or "dfc-data"), EtcdPlace.of(settings)


def _facts(state: RegistryState) -> dict[str, Any]:
    found = state.map
    counts = {"nodes": len(found.nodes), "buckets": len(found.buckets)}
    return {"cluster_id": found.cluster_id, "version": found.version, **counts}


def _words(cluster_id: str, version: int, nodes: int, buckets: int) -> str:
    return f"cluster {cluster_id}, map version {version}, {nodes} nodes, {buckets} buckets"


def _print(session: Session, made: MovedRegistry, place: str, etcd: EtcdPlace | None) -> None:
    """Say where the registry is now."""
    facts = made._asdict()
    what = _words(**facts)
    text = f"the registry is in {place} now: {what}. Start the proxy there, and no other one, without etcd_urls"
    if etcd is not None:
        given = ",".join(etcd.urls)
        text = f"the registry is in etcd below {etcd.below} now: {what}. Start the proxy with etcd_urls = {given}"
    session.print_done({"to": "embedded" if etcd is None else "etcd", **facts}, text)
