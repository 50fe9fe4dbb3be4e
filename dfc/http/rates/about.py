"""What a node is: its version, settings, memory and disks, as it tells other nodes."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from dfc import __version__
from dfc.config import SETTINGS, Loaded, Role, Settings
from dfc.http.run import show_settings
from dfc.logs import timestamp

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
UNKNOWN_ORIGIN: Final = "program"  # of the settings of a node that a program has made, not a command
_began_s: Final = time.time()


class AboutSetting(msgspec.Struct, frozen=True):
    """A setting of a node. `value`: "(set)" for a secret. `origin`: `default`, `file PATH`, `variable NAME`, `flag --name`."""

    name: str
    value: Any
    origin: str


class AboutDisk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk of a target. `failure` says why it has failed. `scrub_state`, the bytes and `scrub_errors` (damaged objects found)
    are those of the pass under way, or of the last one since the start of the target."""

    id: str
    path: str
    state: str
    failure: str = ""
    capacity: int | None = None
    used: int | None = None
    objects: int = 0
    io_errors: int = 0
    quarantined: int = 0
    mended: int = 0
    scrub_state: str = ""
    scrub_bytes_done: int = 0
    scrub_bytes_total: int = 0
    scrub_errors: int = 0


class NodeAbout(msgspec.Struct, frozen=True, kw_only=True):
    """A node. Sizes are in bytes; None where the system does not tell."""

    id: str
    role: str
    version: str
    python: str
    pid: int
    started: str
    uptime_s: float
    url: str
    advertise_url: str
    memory_bytes: int | None
    descriptors: int | None
    descriptors_max: int | None
    connections: int
    settings: list[AboutSetting]
    disks: list[AboutDisk]


def about_node(
    node_id: str,
    role: Role,
    settings: Settings,
    origins: Mapping[str, str],
    urls: tuple[str, str],
    connections: int,
    disks: list[AboutDisk],
) -> NodeAbout:
    """Describe this process. Reads files of the system that are made in memory: nothing of this waits."""
    now_s = time.time()
    return NodeAbout(
        id=node_id,
        role=role,
        version=__version__,
        python=platform.python_version(),
        pid=os.getpid(),
        started=timestamp(_began_s),
        uptime_s=round(now_s - _began_s, 1),
        url=urls[0],
        advertise_url=urls[1],
        memory_bytes=_memory_bytes(),
        descriptors=_descriptors(),
        descriptors_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        connections=connections,
        settings=_settings(role, settings, origins),
        disks=disks,
    )


def _settings(role: Role, settings: Settings, origins: Mapping[str, str]) -> list[AboutSetting]:
    names = [name for name, setting in SETTINGS.items() if role in setting.roles]
    known = {name: origins.get(name, UNKNOWN_ORIGIN) for name in names}
    return [AboutSetting(**row) for row in show_settings(Loaded(settings, known))]


def _memory_bytes() -> int | None:
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return None


def _descriptors() -> int | None:
    with suppress(OSError):
        return len(os.listdir("/proc/self/fd")) - 1  # without the one that lists them
    return None
