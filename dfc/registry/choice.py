"""Which registry a proxy uses: the one in etcd, if its settings name that, otherwise a file in its own directory."""

from __future__ import annotations

import logging
import os
from typing import Final, NamedTuple

from dfc.errors import OperatorError
from dfc.filesystem import FileSystem
from dfc.registry.base import Registry
from dfc.registry.embedded import EmbeddedRegistry
from dfc.registry.etcd.registry import EtcdRegistry, etcd_registry
from dfc.registry.file import FILE_NAME, MOVED_NAME, MOVING_NAME, RegistryFile, lock_directory
from dfc.registry.identity import (
    CLUSTER_FILE,
    new_node_id,
    node_file,
    read_cluster_id,
    read_node_id,
    write_cluster_id,
    write_node_id,
)
from dfc.registry.place import EtcdPlace
from dfc.smallfile import SmallFileDamaged

_log: Final = logging.getLogger("dfc.proxy")


class ChosenRegistry(NamedTuple):
    """A registry that is to be opened, and the id of the proxy that uses it."""

    registry: Registry
    proxy_id: str


def choose_registry(directory: str, filesystem: FileSystem, etcd: EtcdPlace | None = None) -> ChosenRegistry:
    """The registry of the proxy in this directory. OperatorError; DiskRefused for a file that cannot be used."""
    if etcd is not None:
        return _in_etcd(directory, filesystem, etcd)
    file = open_file(directory, filesystem)
    return ChosenRegistry(EmbeddedRegistry(file), file.node_id)


def _in_etcd(directory: str, filesystem: FileSystem, place: EtcdPlace) -> ChosenRegistry:
    path = f"{directory}/{FILE_NAME}"
    if os.path.exists(path):
        raise OperatorError(
            f"{path} is the registry of a cluster with one proxy, but `etcd_urls` is set: give this proxy a directory of its"
            " own (--dir) to use the registry in etcd, leave out `etcd_urls` to use this one, or move it there with"
            " `dfc registry move`"
        )
    if os.path.exists(f"{directory}/{MOVING_NAME}"):
        raise OperatorError(f"the registry of {directory} is being moved to etcd: run that `dfc registry move` again")
    lock = lock_directory(directory, filesystem)
    try:
        own = read_node_id(directory)
        if own is None:
            write_node_id(directory, own := new_node_id("proxy"), filesystem)
        registry: EtcdRegistry = etcd_registry(place, own)
        registry.belongs_to = known = read_cluster_id(directory) or ""
        registry.belongs_in = f"{directory}/{CLUSTER_FILE}"
    except BaseException:
        os.close(lock)
        raise
    registry.on_close = lambda: os.close(lock)
    registry.on_open = lambda found: None if found == known else write_cluster_id(directory, found, filesystem)
    return ChosenRegistry(registry, own)


def open_file(directory: str, filesystem: FileSystem) -> RegistryFile:
    """Open the registry in a directory, and write the proxy's id, which it contains, to the id file beside it.

    The id file also records that there was a registry here. If the registry is missing then, no new one is created, since all
    disks would lose their cluster. OperatorError.
    """
    own, damage = None, None
    try:
        own = read_node_id(directory)
    except SmallFileDamaged as error:
        damage = error
    for name in (MOVING_NAME, MOVED_NAME):
        if os.path.exists(f"{directory}/{name}") and not os.path.exists(f"{directory}/{FILE_NAME}"):
            raise OperatorError(
                f"the registry of {directory} was moved to etcd: set `etcd_urls`, or move it back with `dfc registry move`"
                if name == MOVED_NAME
                else f"the registry of {directory} is being moved to etcd: run that `dfc registry move` again"
            )
    registry = RegistryFile(directory, filesystem=filesystem, may_create=own is None and damage is None)
    try:
        if not registry.node_id:  # written by a version whose registries did not contain it
            if damage is not None:
                raise damage
            registry.keep_node_id(own or new_node_id("proxy"))
        if own != registry.node_id:
            if own is not None or damage is not None:
                _log.warning(
                    "%s was wrong or damaged: corrected to %s, as the registry says", node_file(directory), registry.node_id
                )
            write_node_id(directory, registry.node_id, filesystem)
    except BaseException:
        registry.close()
        raise
    return registry
