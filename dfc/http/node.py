"""A node as a process: settings, event loop, signals, a clean stop; and what it tells of itself.

With `--supervised` the node stops when the process that started it does (its standard input closes), and it ignores Ctrl-C,
which the supervisor handles.

A node that is told to stop is gone after `drain_timeout_s` plus STOP_EXTRA_S, whatever hangs (`dfc.http.shutdown`).
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import faulthandler
import gc
import json
import logging
import os
import platform
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec
import uvloop

from dfc import __version__
from dfc.config import SECRETS, SETTINGS, Loaded, Role, Settings, load_settings
from dfc.errors import DfcError
from dfc.http.server import NodeServer
from dfc.http.shutdown import Watchdog
from dfc.limits import STOP_EXIT_S, STOP_EXTRA_S
from dfc.logs import configure_logging, timestamp
from dfc.wire import prepare_structs

_log: Final = logging.getLogger("dfc.node")
EXIT_OPERATOR_ERROR: Final = 2
_USER_OF_URL: Final = re.compile(r"//[^/\s,]*@")  # a name and a password


class Node(Protocol):
    """The interface of a node that `run_node` needs."""

    id: str
    server: NodeServer

    async def start(self) -> str: ...
    async def stop(self) -> None: ...


def parse_flags(role: Role, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line: `--config FILE`, `--supervised` and a flag for each setting of the role."""
    parser = argparse.ArgumentParser(prog=f"dfc {role}", description=f"Run one {role} node.", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", default=os.environ.get("DFC_CONFIG"), help="TOML file with settings")
    parser.add_argument("--supervised", action="store_true", help="stop when standard input closes")
    for setting in SETTINGS.values():
        if role in setting.roles:
            about = f"{setting.about} (default: {json.dumps(setting.default)})"
            parser.add_argument(setting.flag, dest=setting.name, metavar="VALUE", help=about.replace("%", "%%"))
    return parser.parse_args(arguments)


def load_for(role: Role, arguments: Sequence[str]) -> tuple[Loaded, bool]:
    """Load settings from flags, environment and file; also return whether the node is supervised."""
    flags = vars(parse_flags(role, arguments))
    file, supervised = flags.pop("config"), flags.pop("supervised")
    return load_settings(role, file=file, environment=os.environ, flags=flags), supervised


def run_node(role: Role, make: Callable[[Settings], Node], arguments: Sequence[str]) -> int:
    """Run a node until a signal and return the exit status."""
    try:
        loaded, supervised = load_for(role, arguments)
        configure_logging(loaded.settings.log_level)
        faulthandler.register(signal.SIGUSR1)  # `kill -USR1` prints the stack of each thread to standard error
        _raise_file_limit()
        prepare_structs()
        watchdog = Watchdog()
        status = uvloop.run(_run(role, make, loaded, supervised, watchdog))
        watchdog.end_within(STOP_EXIT_S)
        return status
    except DfcError as error:
        print(f"dfc {role}: {error.message}", file=sys.stderr)
        return EXIT_OPERATOR_ERROR
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        advice = "; another program is using this port, choose another one with --port" if is_taken else ""
        print(f"dfc {role}: {error}{advice}", file=sys.stderr)
        return EXIT_OPERATOR_ERROR


async def _run(role: Role, make: Callable[[Settings], Node], loaded: Loaded, supervised: bool, watchdog: Watchdog) -> int:
    settings = loaded.settings
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    if supervised:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_watch_input, args=(loop, stopping), name="supervisor-watch", daemon=True).start()
    else:
        loop.add_signal_handler(signal.SIGINT, stopping.set)
    if not settings.is_loopback() and not settings.token:
        _log.warning("listening on %s WITHOUT A TOKEN: anyone who can reach it can read, write and delete", settings.host)
    node = make(settings)
    node.server.origins = loaded.origins
    try:
        starting = asyncio.create_task(node.start())
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            watchdog.end_within(STOP_EXTRA_S)
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            return 0
        url = starting.result()
        said = {"ready": True, "role": role, "id": node.id, "url": url, "port": node.server.port}
        # Imported modules are never freed: a full collection that scanned them, too, would block the loop for 20 to 50 ms.
        gc.freeze()
        print(json.dumps(said), flush=True)
        await stopped
        _log.info("stopping: running requests have %s s to finish", settings.drain_timeout_s)
    finally:
        watchdog.end_within(settings.drain_timeout_s + STOP_EXTRA_S)
        await node.stop()
    return 0


def _watch_input(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Stop the node when the supervisor exits, for whatever reason: its end of this pipe closes then."""
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    with suppress(RuntimeError):  # the loop is closed already
        loop.call_soon_threadsafe(stopping.set)


def _raise_file_limit() -> None:
    """Raise the limit of file descriptors, which connections and open shards need, to the maximum that the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def show_settings(loaded: Loaded) -> list[dict[str, Any]]:
    """List each setting with its value and origin; secrets, and passwords in URLs, are not shown."""
    rows = []
    for name, origin in loaded.origins.items():
        value = getattr(loaded.settings, name)
        shown = "(set)" if name in SECRETS and value else _without_passwords(value)
        rows.append({"name": name, "value": shown, "origin": origin})
    return rows


def _without_passwords(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_without_passwords(each) for each in value)
    return _USER_OF_URL.sub("//(set)@", value) if isinstance(value, str) else value


# --- What a node is: its version, settings, memory and disks, as it tells other nodes.

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
UNKNOWN_ORIGIN: Final = "program"  # of the settings of a node that a program has made, not a command
_began_s: Final = time.time()


class SettingInfo(msgspec.Struct, frozen=True):
    """A setting of a node. `value`: "(set)" for a secret. `origin`: `default`, `file PATH`, `variable NAME`, `flag --name`."""

    name: str
    value: Any
    origin: str


class DiskInfo(msgspec.Struct, frozen=True, kw_only=True):
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
    repaired: int = 0
    scrub_state: str = ""
    scrub_bytes_done: int = 0
    scrub_bytes_total: int = 0
    scrub_errors: int = 0


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
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
    settings: list[SettingInfo]
    disks: list[DiskInfo]


def node_info(
    node_id: str,
    role: Role,
    settings: Settings,
    origins: Mapping[str, str],
    urls: tuple[str, str],
    connections: int,
    disks: list[DiskInfo],
) -> NodeInfo:
    """Describe this process. Reads files of the system that are made in memory: nothing of this waits."""
    now_s = time.time()
    return NodeInfo(
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


def _settings(role: Role, settings: Settings, origins: Mapping[str, str]) -> list[SettingInfo]:
    names = [name for name, setting in SETTINGS.items() if role in setting.roles]
    known = {name: origins.get(name, UNKNOWN_ORIGIN) for name in names}
    return [SettingInfo(**row) for row in show_settings(Loaded(settings, known))]


def _memory_bytes() -> int | None:
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
    return None


def _descriptors() -> int | None:
    with suppress(OSError):
        return len(os.listdir("/proc/self/fd")) - 1  # without the one that lists them
    return None
