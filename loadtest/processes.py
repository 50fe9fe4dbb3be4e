"""Children of a benchmark or demo: started without a shell, ended by their pid whatever happens, measured in /proc."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

END_S = 20.0  # between SIGTERM and SIGKILL: long reads are drained
POLL_S = 0.02
_INTERRUPTED = threading.Event()


class ProcessFailed(RuntimeError):
    """A child ended early, did not become ready, or gave another exit code than 0."""


class Child:
    """One child process with its output in a file, in a session of its own: Ctrl-C reaches us alone, and we end it."""

    def __init__(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        quiet_stdout: bool = True,
    ) -> None:
        self.argv = list(argv)
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*_death_signal(), *argv],
                stdin=subprocess.DEVNULL,
                stdout=output if quiet_stdout else subprocess.PIPE,
                stderr=output,
                env={**_environment(), **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> IO[bytes]:
        if self.process.stdout is None:
            raise ValueError("this child's output goes to its log")
        return self.process.stdout

    def end(self) -> None:
        """SIGTERM, and SIGKILL when that is not enough; returns when the process is gone."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def failure(self, why: str) -> ProcessFailed:
        """An error that carries the end of the child's log."""
        tail = self.log.read_text(errors="replace")[-2000:]
        return ProcessFailed(f"{why}: {' '.join(self.argv)}\n{tail}")

    def wait_until(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Poll until `ready()`; ProcessFailed when the child ends or the time is up before."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.process.poll() is not None:
                raise self.failure(f"ended with {self.process.returncode} before {what}")
            if time.monotonic() > deadline:
                raise self.failure(f"no sign of {what} in {timeout_s:.0f} s")
            time.sleep(POLL_S)


def _environment() -> dict[str, str]:
    """Ours without `DFC_…`: settings of the user's own cluster (a token, a port) are not meant for the one under test."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DFC_")}


def _death_signal() -> list[str]:
    """A prefix that ends the child when we are killed without a chance to do it, where util-linux has it."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []


@contextlib.contextmanager
def running(
    argv: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    quiet_stdout: bool = True,
) -> Iterator[Child]:
    """A child for the length of a `with` block."""
    child = Child(argv, log, env=env, cwd=cwd, quiet_stdout=quiet_stdout)
    try:
        yield child
    finally:
        child.end()


@contextlib.contextmanager
def meanwhile(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Do something in a thread for the length of a `with` block. It ends when the event is set that it is given."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(argv: Sequence[str], *, timeout_s: float = 300.0, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command to its end and give its standard output; ProcessFailed for another exit code than 0.

    `env` comes on top of our own environment.
    """
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=environment
    )
    if done.returncode != 0:
        raise ProcessFailed(f"exit code {done.returncode}: {' '.join(argv)}\n{done.stderr[-2000:]}")
    return done.stdout


def interruptible() -> None:
    """Let SIGTERM end this program like Ctrl-C does, through every `finally`; and Ctrl-C too, where a shell had it ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        _INTERRUPTED.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def check_interrupted() -> None:
    """KeyboardInterrupt if there was one before: a finalizer or an import with a bare `except` may have swallowed it."""
    if _INTERRUPTED.is_set():
        raise KeyboardInterrupt


def wait_for_interrupt() -> None:
    """Return when somebody presses Ctrl-C, or SIGTERM comes."""
    with contextlib.suppress(KeyboardInterrupt):
        while not _INTERRUPTED.wait(3600.0):
            pass


def find_program(name: str) -> str | None:
    """The path of a program; /usr/sbin is looked at too, which is not on every user's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether somebody listens on this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def listener_pid(port: int, root: int) -> int:
    """The process below `root` (itself included) that listens on this TCP port; LookupError when there is none."""
    inodes = _listening_inodes(port)
    found = [pid for pid in [root, *descendants(root)] if inodes & _socket_inodes(pid)]
    if not found:
        raise LookupError(f"no process below {root} listens on port {port}")
    return found[-1]  # a supervisor may have opened the socket and handed it down: the youngest serves it


def descendants(pid: int) -> list[int]:
    """All live processes below this one, parents before children."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                    found += [int(child), *descendants(int(child))]
    return found


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))
    except OSError:
        pass
    return found


def memory_bytes(pid: int) -> tuple[int, int]:
    """(resident now, the most that was ever resident) of a process, in bytes: VmRSS and VmHWM, mapped files included."""
    values = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            values[name] = int(rest.split()[0]) * 1024
    return values["VmRSS"], values["VmHWM"]


def processor_seconds(root: int) -> float:
    """Seconds of processor time, user and kernel, of a process and everything below it, ended and reaped children included."""
    total = 0
    for pid in [root, *descendants(root)]:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / os.sysconf("SC_CLK_TCK")


def reset_peak(pid: int) -> None:
    """Make the kernel forget the highest resident size of a process, so that a phase has a peak of its own."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def available_memory_bytes() -> int:
    """What the kernel says can still be used without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
