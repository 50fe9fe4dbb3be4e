"""Finds the objects that an address on the command line stands for: a name, a shard spec, a glob or a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dfc.cli.address import Remote, parse_remote
from dfc.cli.exits import UsageMistake
from dfc.cli.session import Session
from dfc.errors import NotFound, ObjectNotFound

if TYPE_CHECKING:
    from dfc.client import Client

_WILDCARDS: Final = frozenset("*?[{")
_SPECIAL: Final = _WILDCARDS | {"@"}


@dataclass(frozen=True, slots=True)
class Selected:
    """One object. `relative` is its name below the folder of the address; size and etag are set if it was listed."""

    remote: Remote
    relative: str
    size: int | None = None
    etag: str | None = None


def select(
    session: Session,
    addresses: Sequence[str],
    *,
    recursive: bool = False,
    missing: Callable[[str, NotFound], None] | None = None,
) -> Iterator[Selected]:
    """Yield the objects of all addresses, in order; specs and folders are looked up lazily.

    Raises BadName, or UsageMistake for a folder without `recursive`, at once. A glob or folder without objects is passed to
    `missing`, or raised as ObjectNotFound. An address that looks like a spec but is the name of an object means that object.
    """
    remotes = [parse_remote(address) for address in addresses]
    for address, remote in zip(addresses, remotes, strict=True):
        if remote.is_folder and not recursive:
            raise UsageMistake(f"{address} is a folder: use -r")
    return _selected(session, remotes, missing)


def _selected(
    session: Session, remotes: Sequence[Remote], missing: Callable[[str, NotFound], None] | None
) -> Iterator[Selected]:
    for remote in remotes:
        try:
            yield from _expand(session.client(remote.base), remote)
        except NotFound as error:
            if missing is None:
                raise
            missing(str(remote), error)


def _expand(client: Client, remote: Remote) -> Iterator[Selected]:
    if remote.is_folder:
        yield from _listed(client, remote, remote.name, lambda name: True, len(remote.name))
        return
    from dfc.shards import expand, is_plain

    if is_plain(remote.name) or _exists(client, remote):
        yield Selected(remote, remote.name[remote.name.rfind("/") + 1 :])
        return
    chosen = expand(remote.name)
    base = _folder_length(remote.name)
    if isinstance(chosen, list):
        yield from (Selected(remote._replace(name=name), name[base:]) for name in chosen)
    else:
        yield from _listed(client, remote, chosen.prefix, chosen.matches, base)


def is_pattern(name: str) -> bool:
    """Whether a name that may also be a prefix has wildcards or braces."""
    return not _WILDCARDS.isdisjoint(name)


def matcher(spec: str) -> tuple[str, Callable[[str], bool]]:
    """For filtering a listing by a spec: return the prefix of all matching names, and a function that tells if one matches."""
    from dfc.shards import expand

    chosen = expand(spec)
    if isinstance(chosen, list):
        return spec[: _plain_length(spec)], frozenset(chosen).__contains__
    return chosen.prefix, chosen.matches


def _plain_length(spec: str) -> int:
    return next((at for at, char in enumerate(spec) if char in _SPECIAL), len(spec))


def _folder_length(spec: str) -> int:
    """The length of the folder that contains everything a spec can stand for."""
    return spec.rfind("/", 0, _plain_length(spec)) + 1


def _exists(client: Client, remote: Remote) -> bool:
    try:
        client.stat(remote.bucket, remote.name)
    except NotFound:
        return False
    return True


def _listed(client: Client, remote: Remote, prefix: str, matches: Callable[[str], bool], base: int) -> Iterator[Selected]:
    found = False
    for info in client.list(remote.bucket, prefix=prefix):
        if matches(info.name):
            found = True
            yield Selected(remote._replace(name=info.name), info.name[base:], info.size, info.etag)
    if not found:
        raise ObjectNotFound(f"nothing matches {remote}")
