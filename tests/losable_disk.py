"""An ext4 file system in a file that loses power when it is told to: shut down by ioctl; mounting it replays its journal."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from harness import command_line, wait_for

from dfc.limits import MIB

_SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32) of fs/ext4/ext4.h
# What is written out before nothing more is: everything; the journal with what it orders; nothing, as when a plug is pulled.
FLUSH_ALL, FLUSH_JOURNAL, FLUSH_NOTHING = 0, 1, 2
_NEW_NAMESPACE: Final = 0x00020000  # CLONE_NEWNS
_PRIVATE: Final = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
_libc: Final = ctypes.CDLL(None, use_errno=True)
IMAGE_BYTES: Final = 1024 * MIB  # sparse
_ENOUGH_S: Final = 30.0


def why_not() -> str:
    """What is missing for such a disk here; empty when nothing is."""
    if os.geteuid() != 0:
        return "mounting needs root"
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount", "losetup") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    tried = subprocess.run(["losetup", "--find"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"no loop device: {tried.stderr.strip()}"


class LosableDisk:
    """`root` is where it is mounted. Use `losable_disk` or `losable_disks`, which clean up."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "mounted"
        self.root.mkdir()
        self.image = directory / "image"
        self._is_mounted = False

    def make(self) -> None:
        """A new, empty file system, mounted with the defaults (data=ordered, delayed allocation)."""
        self.unmount()
        self.image.unlink(missing_ok=True)
        with self.image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(self.image))
        self.mount()

    def mount(self) -> None:
        _run("mount", "-o", "loop", "-t", "ext4", str(self.image), str(self.root))
        self._is_mounted = True

    def lose_power(self, flush: int = FLUSH_NOTHING) -> None:
        """From here on every write and sync fails, and what had not reached the medium never will."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", flush))
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """After the end of all processes that have something open in it."""
        if not self._is_mounted:
            return
        wait_for(self._is_unmounted_now, f"{self.root} to be let go by the processes {self.users()}", _ENOUGH_S)
        wait_for(self._is_detached, f"the loop device of {self.image} to be free", _ENOUGH_S)
        self._is_mounted = False

    def _is_detached(self) -> bool:
        return not subprocess.run(["losetup", "-j", str(self.image)], capture_output=True, text=True).stdout

    def _is_unmounted_now(self) -> bool:
        done = subprocess.run(["umount", str(self.root)], capture_output=True, text=True)
        return done.returncode == 0 or "not mounted" in done.stderr

    def users(self) -> list[int]:
        """The processes that have something open, or are, in it."""
        prefix = f"{self.root}/"
        found = []
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or int(process.name) == os.getpid():
                continue
            with suppress(OSError):
                links = [process / "cwd", *(process / "fd").iterdir()]
                if any(_link(link).startswith(prefix) or _link(link) == str(self.root) for link in links):
                    found.append(int(process.name))
        return found

    def end_users(self) -> None:
        """Kill them; nobody but the test's own nodes has anything here. Trackers of multiprocessing end after the others, by
        themselves: they remove the semaphores of those."""

        def are_gone() -> bool:
            users = self.users()
            for pid in users:
                if "resource_tracker" not in command_line(pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            return not users

        wait_for(are_gone, "the end of the processes on the disk", _ENOUGH_S)


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@contextmanager
def _private_mounts() -> Iterator[None]:
    """What this thread and its children mount is seen by nobody else. Else whoever makes a namespace of its own meanwhile, as
    every sandbox does, would hold the file system and it could not be mounted anew."""
    before, directory = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), os.getcwd()
    try:
        _call(_libc.unshare, _NEW_NAMESPACE)
        _call(_libc.mount, b"none", b"/", None, _PRIVATE, None)
        yield
    finally:
        _call(_libc.setns, before, _NEW_NAMESPACE)
        os.close(before)
        os.chdir(directory)


def _call(function: Callable[..., int], *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def losable_disks(directories: Iterable[Path]) -> Iterator[list[LosableDisk]]:
    """A mounted disk in each directory; in the end their processes, mounts, loop devices and images are gone."""
    with _private_mounts(), ExitStack() as stack:
        yield [stack.enter_context(_made(directory)) for directory in directories]


@contextmanager
def losable_disk(directory: Path) -> Iterator[LosableDisk]:
    """One such disk. Two of them at once would see each other's mounts and keep them: see `losable_disks`."""
    with losable_disks([directory]) as disks:
        yield disks[0]


@contextmanager
def _made(directory: Path) -> Iterator[LosableDisk]:
    disk = LosableDisk(directory)
    try:
        disk.make()
        yield disk
    finally:
        try:
            disk.end_users()
            disk.unmount()
        finally:
            if disk.root.is_mount():
                subprocess.run(["umount", "--lazy", str(disk.root)], check=False)
            disk.image.unlink(missing_ok=True)
