"""The sandbox: its protocol, and the confinement of its process."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

# --- The protocol over the pipes of a sandbox: frames of a length (4 bytes, little-endian) and that many bytes of msgpack.

LENGTH: Final = struct.Struct("<I")


class WireSample(msgspec.Struct, frozen=True, array_like=True):
    """A sample: its key, and the bytes of every extension, in order."""

    key: str
    fields: dict[str, bytes]


class Setup(msgspec.Struct, frozen=True):
    """The first frame to a child: an entry point of the group `dfc.map` with its arguments, a command, or a module of DFC whose
    `work` is what to do; and the limits."""

    scratch: str
    module_path: list[str]
    function: str | None
    args: dict[str, Any]
    command: list[str]
    memory_bytes: int
    cpu_s: int
    file_bytes: int
    processes: int
    own: str = ""
    nice: int = 0


class Ready(msgspec.Struct, frozen=True):
    """The reply to Setup: the isolation in effect, or why the code cannot start."""

    isolation: list[str] = []
    error: str = ""


class Call(msgspec.Struct, frozen=True):
    """One sample to process. `seed`: 64 bits from the seed of the job and the ordinal of the sample."""

    seed: int
    sample: WireSample


class Reply(msgspec.Struct, frozen=True):
    """The resulting samples, or the error."""

    samples: list[WireSample] = []
    error: str = ""


def frame(value: Any) -> bytes:
    content = msgspec.msgpack.encode(value)
    return LENGTH.pack(len(content)) + content


# --- Confines a process with what the kernel allows: namespaces, another user, Landlock, resource limits. Linux only.
#
# A process of root becomes `nobody`. If a step is not allowed (containers often forbid namespaces), the others are still taken;
# `isolate` returns which ones succeeded.

NOBODY: Final = 65534
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NEW_USER: Final = 0x10000000
_NAMESPACES: Final = 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000  # mounts, host name, IPC, processes, network
_PRIVATE, _RECURSIVE, _BIND = 0x40000, 0x4000, 0x1000
_NO_SUID_DEV: Final = 0x2 | 0x4
_SET_PARENT_DEATH_SIGNAL, _SET_DUMPABLE, _SET_NO_NEW_PRIVILEGES = 1, 4, 38
_CAPABILITY_VERSION: Final = 0x20080522
_CAPSET: Final = {"x86_64": 126, "aarch64": 91}
_OPEN_FILES: Final = 256


def isolate(setup: Setup, readable: Sequence[str], listable: Sequence[str], keep: Sequence[int]) -> list[str]:
    """Confine this process permanently, and return the names of the steps that succeeded. If there is a new namespace, this
    returns in a new process, the first one in it; the old one closes the descriptors in `keep`, waits, and exits like it.

    `readable`: files and trees that the code needs besides those of the system; `listable`: directories it may list.
    """
    done = []
    root = os.geteuid() == 0
    uid, gid = os.geteuid(), os.getegid()
    beside = _tasks_of(NOBODY if root else uid)  # now, because a /proc of its own does not show them
    if _LIBC.unshare(_NAMESPACES | (0 if root else _NEW_USER)) == 0:
        if not root:
            _map_ids(uid, gid)
        _mount(None, "/", None, _PRIVATE | _RECURSIVE)
        if root:
            _expose([*readable, setup.scratch])
        if _mount("tmpfs", setup.scratch, "tmpfs", _NO_SUID_DEV, f"size={setup.file_bytes},mode=0777"):
            done.append("bounded scratch")
        os.chdir(setup.scratch)
        _become_first_process(keep)
        own_proc = _mount("proc", "/proc", "proc", _NO_SUID_DEV)
        own_user = not root
        done += ["processes", "network", "mounts"]
    else:
        own_proc = own_user = False
        os.chdir(setup.scratch)  # now, because `nobody` may have no access to the directories above it
    if root:
        _become_nobody()
        own_user = _LIBC.unshare(_NEW_USER) == 0  # so that the limit of processes does not count those of every other `nobody`
        if own_user:
            _map_ids(NOBODY, NOBODY)
        done.append("user")
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    _limit(setup, 0 if own_user else beside)
    os.umask(0o077)
    _LIBC.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if _landlock(readable, listable, own_proc=own_proc):
        done.append("files")
    _drop_capabilities()
    return done


def _become_first_process(keep: Sequence[int]) -> None:
    child = os.fork()
    if not child:
        return
    for descriptor in keep:
        os.close(descriptor)
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(128 - code if code < 0 else code)


def _become_nobody() -> None:
    os.chown(".", NOBODY, NOBODY)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    _LIBC.prctl(_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self belongs to root


def _map_ids(uid: int, gid: int) -> None:
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with suppress(OSError), open(f"/proc/self/{name}", "w") as file:  # unmapped ids belong to nobody, which is even better
            file.write(text)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> bool:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    return bool(_LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]) == 0)


def _expose(paths: Sequence[str]) -> None:
    """Make paths accessible inside directories that only root can enter (a Python in /root), and hide everything else there."""
    hidden: dict[str, list[tuple[str, int]]] = {}
    for path in paths:
        closed = _closed_ancestor(path)
        if closed is not None and os.path.exists(path):
            hidden.setdefault(closed, []).append((path, os.open(path, os.O_PATH)))
    for closed, inside in sorted(hidden.items()):
        if not _mount("tmpfs", closed, "tmpfs", _NO_SUID_DEV, "size=1m,mode=0755"):
            continue
        for path, descriptor in sorted(inside, key=lambda item: len(item[0])):
            directory = path if os.path.isdir(f"/proc/self/fd/{descriptor}") else os.path.dirname(path)
            os.makedirs(directory, 0o755, exist_ok=True)
            if directory != path and not os.path.exists(path):
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
            _mount(f"/proc/self/fd/{descriptor}", path, None, _BIND | _RECURSIVE)
            os.close(descriptor)


def _closed_ancestor(path: str) -> str | None:
    """The first directory on the path that other users cannot enter."""
    at = "/"
    for part in os.path.dirname(os.path.abspath(path)).split("/")[1:]:
        at = os.path.join(at, part)
        try:
            if not os.stat(at).st_mode & 0o001:
                return at
        except OSError:
            return None
    return None


def _tasks_of(uid: int) -> int:
    """Count the threads of a user: without a user namespace, all of them count against the limit."""
    count = 0
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == uid:
                count += len(os.listdir(f"/proc/{name}/task"))
    return count


def _limit(setup: Setup, others: int) -> None:
    for kind, bound in (
        (resource.RLIMIT_AS, setup.memory_bytes),
        (resource.RLIMIT_CPU, setup.cpu_s),
        (resource.RLIMIT_FSIZE, setup.file_bytes),
        (resource.RLIMIT_NPROC, others + setup.processes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, highest = resource.getrlimit(kind)
        if highest != resource.RLIM_INFINITY:
            bound = min(bound, highest)
        resource.setrlimit(kind, (bound, bound))


# --- Landlock: which files the process and its children may open.

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE: Final = 1 << 14
_ACCESS_BITS: Final = {1: 13, 2: 14, 3: 15, 4: 15}  # by version of the ABI; 16 from version 5 on
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_SYSTEM: Final = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin")
# Only what programs need to start, because /etc also has the configuration of services, with their tokens.
_ETC: Final = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "passwd", "group", "nsswitch.conf", "mime.types",
    "magic", "fonts", "ImageMagick-6", "ImageMagick-7", "ssl/openssl.cnf",
)  # fmt: skip
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def _landlock(readable: Sequence[str], listable: Sequence[str], *, own_proc: bool) -> bool:
    """Restrict access to files; the working directory is scratch, with full access to everything below it."""
    version = _LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    handled = (1 << _ACCESS_BITS.get(version, 16)) - 1
    tcp = 3 if version >= 4 else 0  # forbid bind and connect
    scope = 3 if version >= 6 else 0  # forbid signals to, and abstract sockets of, processes outside
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = struct.pack("<QQQ", handled, tcp, scope)
    ruleset = _LIBC.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    rules = [(path, _READ) for path in (*_SYSTEM, *readable, *(f"/etc/{name}" for name in _ETC))]
    rules += [(path, _READ_FILE | _WRITE_FILE) for path in _DEVICES]
    rules += [(path, _READ_DIR) for path in listable]
    rules.append((".", handled))
    if own_proc:
        rules.append(("/proc", _READ_FILE | _READ_DIR))
    for path, access in rules:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = access & handled & (-1 if os.path.isdir(path) else _ON_FILES)
        _LIBC.syscall(_ADD_RULE, ruleset, 1, struct.pack("<Qi", allowed, descriptor), 0)
        os.close(descriptor)
    restricted = bool(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    os.close(ruleset)
    return restricted


def _drop_capabilities() -> None:
    """Drop all capabilities, including those in the own namespaces, which could undo mounts."""
    number = _CAPSET.get(os.uname().machine)
    if number is not None:
        _LIBC.syscall(number, struct.pack("<Ii", _CAPABILITY_VERSION, 0), bytes(24))
