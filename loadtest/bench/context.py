"""What the rows share: directories on disk and in memory, clusters, nginx and test files, each made when first asked for."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from loadtest.bare import bare_server
from loadtest.bodies import Body
from loadtest.cluster import Cluster, cluster
from loadtest.nginx import Nginx, nginx
from loadtest.processes import ProcessFailed
from loadtest.scenarios import put_body
from loadtest.tarstream import write_member_tar

OBJECT_BYTES = 256 << 20
OBJECTS = 8
SHARD_MEMBER_BYTES = 100_000
NGINX_WORKERS = 2
BUCKET = "bench"
RELAXED_BUCKET = "bench-relaxed"
MEMORY_FREE_BYTES = 4 << 30


class Bench:
    """One run. `directory` lies on a disk, `memory` in /dev/shm where that has room; both vanish with `close`."""

    def __init__(self, console: Console, *, pairs: int, parent: Path | None) -> None:
        self.console = console
        self.pairs = pairs
        self.load_before = os.getloadavg()[0]
        self._stack = contextlib.ExitStack()
        self.directory = self._temporary(parent or disk_parent())
        found = memory_parent()
        self.in_memory = found is not None
        self.memory = self._temporary(found or self.directory)

    def close(self) -> None:
        """End what was started, by pid, and remove the directories."""
        self._stack.close()

    def _temporary(self, parent: Path) -> Path:
        path = Path(tempfile.mkdtemp(prefix="dfc-bench-", dir=parent))
        self._stack.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    @functools.cached_property
    def disk_cluster(self) -> Cluster:
        """One proxy and one target with one disk, on disk, with the buckets `bench` (fsync) and `bench-relaxed`."""
        return self._cluster(self.directory / "dfc")

    @functools.cached_property
    def memory_cluster(self) -> Cluster:
        """The same in the memory-backed directory."""
        return self._cluster(self.memory / "dfc")

    def _cluster(self, directory: Path) -> Cluster:
        started = self._stack.enter_context(cluster(directory))
        started.make_bucket(BUCKET, "fsync")
        started.make_bucket(RELAXED_BUCKET, "relaxed")
        return started

    @functools.cached_property
    def disk_nginx(self) -> Nginx:
        return self._stack.enter_context(nginx(self.directory, workers=NGINX_WORKERS))

    @functools.cached_property
    def memory_nginx(self) -> Nginx:
        return self._stack.enter_context(nginx(self.memory, workers=NGINX_WORKERS))

    @functools.cached_property
    def bare_disk(self) -> str:
        """The URL of a bare server (`loadtest.bare`) of the files of `disk_nginx`."""
        return self._stack.enter_context(bare_server("files", self.disk_nginx.root))

    @functools.cached_property
    def bare_memory(self) -> str:
        """The same of `memory_nginx`."""
        return self._stack.enter_context(bare_server("files", self.memory_nginx.root))

    @functools.cached_property
    def bare_answers(self) -> str:
        """The URL of a bare server that answers everything with the same 1 KiB."""
        return self._stack.enter_context(bare_server("answers", self.directory))

    @functools.cached_property
    def objects(self) -> list[str]:
        """Paths `/bench/get-N.bin` of the large objects, stored in DFC; nginx serves DFC's own files under the same path."""
        started, paths = self.disk_cluster, []
        (self.disk_nginx.root / BUCKET).mkdir()
        with contextlib.closing(started.connect(started.targets[0])) as connection:
            for number in range(OBJECTS):
                name = f"get-{number}.bin"
                put_body(connection, f"/{BUCKET}/{name}", Body(number, OBJECT_BYTES))
                (self.disk_nginx.root / BUCKET / name).symlink_to(_blob(started.directory, name))
                paths.append(f"/{BUCKET}/{name}")
        os.sync()
        return paths

    @functools.cached_property
    def shard(self) -> Path:
        """A 256 MiB tar of 100 kB members in the memory-backed directory: the source of the PUT rows."""
        path = self.memory / "source.tar"
        write_member_tar(path, OBJECT_BYTES, SHARD_MEMBER_BYTES)
        return path


def _blob(directory: Path, name: str) -> Path:
    """The file in which DFC keeps an object that was stored once (docs/on-disk-format.md); a footer follows its bytes."""
    found = [path for path in directory.rglob(f"{name}@*") if path.suffix != ".idx"]
    if len(found) != 1:
        raise ProcessFailed(f"{len(found)} files of {name} below {directory}")
    return found[0].resolve()


def disk_parent() -> Path:
    """A directory that is not memory-backed: the usual temporary one, or /var/tmp when that is a tmpfs."""
    usual = Path(tempfile.gettempdir())
    return Path("/var/tmp") if filesystem_type(usual) == "tmpfs" else usual


def memory_parent() -> Path | None:
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or filesystem_type(shm) != "tmpfs":
        return None
    return shm if shutil.disk_usage(shm).free >= MEMORY_FREE_BYTES else None


def filesystem_type(path: Path) -> str:
    """The type of the filesystem that holds a path, from /proc/mounts; empty when that cannot be read."""
    best, kind = -1, ""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return ""
    place = path.resolve()
    for line in lines:
        _, mount, found, *_ = line.split()
        if place.is_relative_to(mount) and len(mount) > best:
            best, kind = len(mount), found
    return kind
