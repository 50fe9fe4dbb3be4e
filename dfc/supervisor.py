"""`dfc serve`: run a proxy and its targets as child processes, with all state under one directory.

    DIR/cluster.json        the number of targets and disks, which may grow later, or shrink when the rest was drained
    DIR/proxy/              the registry
    DIR/target-K/disk-M/    the disks
    DIR/logs/NAME.log       the log of each child (NAME.log.1: the previous part)

A child that dies is restarted on the same port. Children have the read end of a pipe as standard input: when the supervisor
exits or is killed, the pipe closes and they stop too.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dfc.errors import OperatorError
from dfc.filesystem import FileSystem, SmallFileDamaged, make_directories, other_format, read_small_file, write_small_file
from dfc.limits import MIB, STOP_KILL_S

SHAPE_FILE: Final = "cluster.json"
FORMAT: Final = 1  # of everything below the directory
PORTS_FILE: Final = "ports.json"
DISK_FILE: Final = "dfc-disk.json"  # `IDENTITY_FILE` of `dfc.storage.layout`
READY_TIMEOUT_S: Final = 60.0
SAY_LATE_S: Final = 5.0  # whoever is not up by then is named
HEALTH_TIMEOUT_S: Final = 5.0
_NOT_UP: Final = ("joining", "down")  # states of a target that the map does not have, or that was silent
RESTART_FIRST_S: Final = 0.1
RESTART_MAX_S: Final = 2.0
STEADY_S: Final = 10.0  # a child that lived this long is restarted without a long delay
LOG_BYTES_MAX: Final = 64 * MIB
LOG_CHECK_S: Final = 10.0
Shape = tuple[int, int]
"""The numbers of targets, and of disks of each."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of `dfc serve`; None means the value stored in the directory, or the default."""

    directory: str
    host: str = "127.0.0.1"
    port: int = 8080
    targets: int | None = None
    disks: int | None = None
    advertise_host: str = ""
    drain_timeout_s: float = 30.0


@dataclass
class Child:
    """One node process, and what is needed to restart it."""

    name: str
    module: str
    arguments: list[str]
    host: str
    port: int
    process: asyncio.subprocess.Process | None = None
    url: str = ""
    failures: int = 0
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs the cluster until a signal, then stops its children; they finish running requests first."""

    def __init__(self, options: ServeOptions, say: Callable[[str], None] = print) -> None:
        self._options = options
        self._say = say
        self._root = Path(options.directory).absolute()
        self._stopping = asyncio.Event()
        self._children: list[Child] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._fatal: str | None = None
        self._larger: Shape | None = None  # the numbers of before, if they were larger
        self._signals = 0
        self._filesystem = FileSystem()

    async def run(self) -> int:
        """Run until a signal and return the exit status."""
        if not self._root.exists():
            await asyncio.to_thread(self._check_port)  # before a directory is made for nothing
        lock = self._lock()
        try:
            await asyncio.to_thread(self._check_port)
            targets, disks = self._shape()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._signal)
            await self._start(targets, disks)
            if not self._stopping.is_set():
                url = self._children[0].url
                each = "1 disk each" if disks == 1 else f"{disks} disks each"
                self._say(
                    f"DFC is ready at {url}  ({targets} targets with {each}, data in {self._root})\n"
                    f"  upload:  curl -T dataset.tar {url}/dataset.tar\n"
                    f"  read:    curl -O {url}/dataset.tar\n"
                    f"  look:    {url}/ui in a browser\n"
                    "Stop with Ctrl-C."
                )
            watch = asyncio.create_task(self._watch_logs())
            await self._stopping.wait()
            watch.cancel()
            await self._end()
            if self._fatal:
                raise OperatorError(self._fatal)
            return 0
        finally:
            for child in self._children:
                _send(child, signal.SIGKILL)
            os.close(lock)

    def _signal(self) -> None:
        self._signals += 1
        self._stopping.set()
        if self._signals > 1:
            for child in self._children:
                _send(child, signal.SIGKILL)

    def _check_port(self) -> None:
        """Raise OperatorError when the proxy's port is taken: said at once, without starting anything. Blocking."""
        options = self._options
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(address)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "another program is using this port, choose another one with --port" if taken else error
            raise OperatorError(f"cannot listen on {options.host} port {options.port}: {reason}") from None

    # --- the directory

    def _lock(self) -> int:
        make_directories(str(self._root), self._filesystem)
        (self._root / "logs").mkdir(exist_ok=True)
        descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise OperatorError(f"another `dfc serve` is already running on {self._root}") from None
        return descriptor

    def _shape(self) -> Shape:
        """Return the numbers of targets and of disks per target: those of the directory, others, or those of a new one."""
        have = self._kept_shape()
        asked = (self._options.targets, self._options.disks)
        if have is not None:
            wanted = (asked[0] or have[0], asked[1] or have[1])
            if wanted[0] < have[0] or wanted[1] < have[1]:
                self._larger = have  # it stays so until the proxy has said that what is left out holds nothing
            elif wanted != have:  # what is new joins the others, and objects are moved to it
                self._keep_shape(wanted)
            return wanted
        there = sorted(directory.name for directory in self._root.glob("target-*"))
        if there and None in asked:
            raise OperatorError(
                f"{self._root / SHAPE_FILE} is missing, but the data is there: {', '.join(there)}. Pass the number of targets "
                f"and of disks per target once: --targets N --disks M"
            )
        targets, disks = asked[0] or 2, asked[1] or 1
        self._keep_shape((targets, disks))
        return targets, disks

    def _keep_shape(self, shape: Shape) -> None:
        self._write(SHAPE_FILE, {"format": FORMAT, "targets": shape[0], "disks": shape[1]})

    def _check_left_out(self, proxy: Child, have: Shape, wanted: Shape) -> None:
        """Check that no disk is left out that may hold objects: they would be unavailable. OperatorError, with what to do.
        Blocking."""
        places = {
            self._disk_id(number, index): (number, index)
            for number in range(have[0])
            for index in range(have[1])
            if number >= wanted[0] or index >= wanted[1]
        }
        holding, idle = dict[str, str](), dict[str, str]()  # what the map calls them, and where they are
        for node_id, disk_id, may_hold in _registered(proxy):
            if disk_id in places:
                number, index = places[disk_id]
                whole = number >= wanted[0]
                subject, place = (node_id, f"target-{number}") if whole else (disk_id, f"target-{number}/disk-{index}")
                (holding if may_hold else idle)[subject] = place
        if holding:
            first, *_ = holding
            listed = ", ".join(f"{place} ({subject})" for subject, place in holding.items())
            raise OperatorError(
                f"{self._root} has --targets {have[0]} --disks {have[1]}, and what would be left out by --targets {wanted[0]}"
                f" --disks {wanted[1]} may hold objects: {listed}. Start without the flag; `dfc cluster drain {first}"
                " --wait` moves objects away from it, and is said for each of them. Then stop, and start with the flag again"
            )
        for subject, place in idle.items():
            self._say(
                f"{place} is left out. When `dfc cluster status` shows it as down: `dfc cluster remove {subject}`; then"
                f" {self._root / place} can be deleted"
            )

    def _disk_id(self, target: int, disk: int) -> str:
        """The id of a disk; "" if there is none in its directory."""
        path = str(self._root / f"target-{target}" / f"disk-{disk}" / DISK_FILE)
        way_out = "Start with the numbers of before: its target says what to do"
        data = read_small_file(path, way_out)
        try:
            return "" if data is None else str(json.loads(data)["disk_id"])
        except (ValueError, KeyError, TypeError):
            raise SmallFileDamaged(path, "is damaged", way_out) from None

    def _kept_shape(self) -> Shape | None:
        path = str(self._root / SHAPE_FILE)
        way_out = f"""Write it again with the right numbers: echo '{{"format": {FORMAT}, "targets": 2, "disks": 1}}' > {path}"""
        data = read_small_file(path, way_out)
        if data is None:
            return None
        try:
            kept = json.loads(data)
            form, shape = int(kept.get("format", 0)), (int(kept["targets"]), int(kept["disks"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SmallFileDamaged(path, "is damaged", way_out) from None
        if form != FORMAT:
            raise OperatorError(f"{self._root} holds a cluster {other_format(form, FORMAT)}")
        return shape

    def _kept_ports(self) -> dict[str, int]:
        """Return the ports used last time. Without them children take others; only the old addresses are lost."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            return {str(name): int(port) for name, port in json.loads((self._root / PORTS_FILE).read_text()).items()}
        return {}

    def _write(self, name: str, value: dict[str, int]) -> None:
        write_small_file(str(self._root / name), json.dumps(value).encode() + b"\n", self._filesystem)

    # --- children

    async def _start(self, targets: int, disks: int) -> None:
        options = self._options
        arguments = ["--dir", str(self._root / "proxy"), "--expected-targets", str(targets)]
        proxy = Child("proxy", "dfc.servers.proxy", arguments, options.host, options.port)
        self._children.append(proxy)
        self._keepers.append(asyncio.create_task(self._keep(proxy)))
        if not await self._wait_ready(proxy) or not await self._may_be_smaller(proxy, (targets, disks)):
            return
        ports = self._kept_ports()
        for number in range(targets):
            directory = self._root / f"target-{number}"
            paths = [str(directory / f"disk-{index}") for index in range(disks)]
            arguments = ["--dir", str(directory), "--disks", ",".join(paths), "--proxy-url", _local_url(proxy)]
            child = Child(f"target-{number}", "dfc.servers.target", arguments, options.host, ports.get(f"target-{number}", 0))
            self._children.append(child)
            self._keepers.append(asyncio.create_task(self._keep(child)))
        for child in self._children:
            if not await self._wait_ready(child):
                return
        self._write(PORTS_FILE, {child.name: child.port for child in self._children if child.port})
        await self._wait_healthy()

    async def _may_be_smaller(self, proxy: Child, wanted: Shape) -> bool:
        """Whether what is left out holds no objects; then it is left out from now on."""
        if self._larger is not None:
            try:
                await asyncio.to_thread(self._check_left_out, proxy, self._larger, wanted)
            except OperatorError as error:
                self._fail(error.message)
                return False
            self._keep_shape(wanted)
        return True

    async def _wait_ready(self, child: Child) -> bool:
        """Wait until a child is ready; False if the supervisor was stopped first."""
        ready = asyncio.create_task(child.ready.wait())
        stopped = asyncio.create_task(self._stopping.wait())
        done, pending = await asyncio.wait((ready, stopped), timeout=READY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if not done:
            self._fail(f"{child.name} was not ready after {READY_TIMEOUT_S:g} s; see {self._log_path(child)}")
        return ready in done and not self._stopping.is_set()

    async def _wait_healthy(self) -> None:
        """Until the proxy is ready, and all targets are up: one that was marked down is so until the proxy has heard of it. A
        target that does not come up is no reason to end."""
        began_s, is_ready, has_said = time.monotonic(), False, False
        while not self._stopping.is_set() and time.monotonic() < began_s + READY_TIMEOUT_S:
            said = await asyncio.to_thread(lambda: [_health(child) for child in self._children])
            is_ready = said[0] is not None
            late = [
                child for child, each in zip(self._children, said, strict=True) if each is None or each.get("state") in _NOT_UP
            ]
            if is_ready and not late:
                return
            if not has_said and time.monotonic() > began_s + SAY_LATE_S:
                has_said = True
                logs = ", ".join(f"{child.name} ({self._log_path(child)})" for child in late)
                self._say(f"waiting for {logs}, for {READY_TIMEOUT_S:g} s at most; `dfc cluster status` says more")
            await asyncio.sleep(0.05)
        if not self._stopping.is_set() and not is_ready:
            self._fail(f"the cluster was not healthy after {READY_TIMEOUT_S:g} s; see the logs in {self._root / 'logs'}")

    def _fail(self, message: str) -> None:
        self._fatal = self._fatal or message
        self._stopping.set()

    def _log_path(self, child: Child) -> Path:
        return self._root / "logs" / f"{child.name}.log"

    async def _keep(self, child: Child) -> None:
        """Start a child, and restart it whenever it exits, until the supervisor stops."""
        wait_s = RESTART_FIRST_S
        while not self._stopping.is_set():
            begun = time.monotonic()
            status = await self._run_once(child)
            if self._stopping.is_set():
                return
            if not child.ready.is_set():
                child.failures += 1
                if child.name == "proxy" or child.failures > 2:
                    last_words = " | ".join(self._log_path(child).read_text(errors="replace").splitlines()[-3:])
                    self._fail(f"{child.name} cannot start: {last_words or 'it logged nothing'}")
                    return
                child.port = 0  # its last port may be taken by now
            elif time.monotonic() - begun > STEADY_S:
                wait_s = RESTART_FIRST_S
            self._say(f"{child.name} exited with status {status}; restarting it")
            await asyncio.sleep(wait_s)
            wait_s = min(RESTART_MAX_S, wait_s * 2)

    async def _run_once(self, child: Child) -> int:
        command = [sys.executable, "-m", child.module, "--supervised", "--host", child.host, "--port", str(child.port)]
        command += [*child.arguments, "--drain-timeout-s", str(self._options.drain_timeout_s)]
        if self._options.advertise_host:
            command += ["--advertise-url", f"http://{self._options.advertise_host}:0"]
        with self._log_path(child).open("ab") as log:
            child.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to the supervisor only, which stops its children in order
            )
        assert child.process.stdout is not None
        if self._stopping.is_set():
            child.process.terminate()
        async for line in child.process.stdout:
            with suppress(ValueError, KeyError):
                said: dict[str, Any] = json.loads(line)
                child.url = said["url"]
                child.port = int(said["port"])
                child.ready.set()
        return await child.process.wait()

    # --- the end

    async def _end(self) -> None:
        """Stop the proxy, then all targets.

        Targets that say to a coordinator that they leave are marked down, one after the other, and lack what the last ones may
        have taken: after the next start, objects would be unavailable until peering had ended. A proxy is one until the
        last request of a client has ended, and uploads through it need all targets until then.
        """
        await self._stop(slice(1))
        await self._stop(slice(1, None))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _stop(self, some: slice) -> None:
        """Send SIGTERM to some children: they stop accepting, finish running requests and close their disks. Then SIGKILL the
        rest."""
        children, keepers = self._children[some], self._keepers[some]
        for child in children:
            _send(child, signal.SIGTERM)
        if keepers:
            await asyncio.wait(keepers, timeout=self._options.drain_timeout_s + STOP_KILL_S)
        for child in children:
            if child.process is not None and child.process.returncode is None:
                self._say(f"{child.name} did not stop in time; killing it")
                _send(child, signal.SIGKILL)

    async def _watch_logs(self) -> None:
        """Keep each log and its previous part below LOG_BYTES_MAX; the children keep writing to the same open file."""
        while True:
            await asyncio.sleep(LOG_CHECK_S)
            for child in self._children:
                path = self._log_path(child)
                with suppress(OSError):
                    if path.stat().st_size > LOG_BYTES_MAX:
                        await asyncio.to_thread(shutil.copyfile, path, f"{path}.1")
                        os.truncate(path, 0)


def _local_host(child: Child) -> str:
    """Return the address at which this machine reaches a node, whatever it listens on or advertises."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(child.host, child.host)


def _local_url(child: Child) -> str:
    host = _local_host(child)
    return f"http://{f'[{host}]' if ':' in host else host}:{child.port}"


def _registered(proxy: Child) -> list[tuple[str, str, bool]]:
    """All disks that the cluster knows: node id, disk id, and whether it may hold objects. OperatorError. Blocking."""
    import msgspec  # only here, since none of this is needed for a usual start

    from dfc.config import load_settings
    from dfc.placement.map import ClusterMap
    from dfc.registry.changes import may_hold_objects

    token = load_settings("proxy", file=os.environ.get("DFC_CONFIG"), environment=os.environ).settings.token
    connection = http.client.HTTPConnection(_local_host(proxy), proxy.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/v1/cluster", headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise OperatorError(f"the proxy does not show its cluster: it answers {answer.status}")
        found = msgspec.json.decode(body, type=ClusterMap)
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise OperatorError(f"the proxy does not show its cluster: {error}") from None
    finally:
        connection.close()
    return [(node.id, disk.id, may_hold_objects(found, disk)) for node in found.nodes for disk in node.disks]


def _health(child: Child) -> dict[str, Any] | None:
    """What a node says that is ready; None from one that is not. Blocking. Without httpx, a quarter of all that is imported."""
    connection = http.client.HTTPConnection(_local_host(child), child.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/v1/health")
        answer = connection.getresponse()
        said: dict[str, Any] = json.loads(answer.read())
        return said if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _send(child: Child, number: signal.Signals) -> None:
    if child.process is not None and child.process.returncode is None:
        with suppress(ProcessLookupError):
            child.process.send_signal(number)


def serve(options: ServeOptions, say: Callable[[str], None] = print) -> int:
    """Run a cluster until a signal and return the exit status. OperatorError when it cannot start."""
    return asyncio.run(Supervisor(options, say).run())
