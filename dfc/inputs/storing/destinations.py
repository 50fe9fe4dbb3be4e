"""Destinations of uploads: a DFC cluster, any server that accepts PUT (`servers`), a file, cloud storage by fsspec, a command.

What was stored before stays until the new bytes are complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from typing import Any, BinaryIO, Final, cast

from dfc.client.source import READ_BYTES
from dfc.inputs.sources.cluster import cluster_at
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, StreamOptions
from dfc.inputs.sources.urls import hint_at_scheme, kind_of, local_path, split_cluster_url
from dfc.inputs.storing.destination import Destination, persistently, taken
from dfc.inputs.storing.servers import ClusterDestination, WebDestination

_PART_NAME_CHARS: Final = 60  # so that the whole name has at most 255 bytes


def destination_of(url: str | os.PathLike[str], options: StreamOptions = DEFAULT_OPTIONS) -> Destination:
    """The destination for `http(s)://…`, `dfc:bucket/object`, a path or `file:`, `pipe:command`, `-`, or an fsspec URL.

    BadRequest, BadName, ValueError.
    """
    text = os.fspath(url)
    kind = kind_of(text)
    if kind == "stdin":
        return StandardOutput(text, options)
    if kind == "file":
        return FileDestination(local_path(text), options)
    if kind == "pipe":
        return CommandDestination(text.removeprefix("pipe:"), options)
    if kind == "cluster":
        bucket, name = split_cluster_url(text)
        return ClusterDestination(cluster_at(options.cluster_url, options).client, bucket, name, text, options)
    return WebDestination(text, options) if kind == "web" else CloudDestination(text, options)


class FileDestination(Destination):
    """A file: written beside its destination under a hidden name, synced, then renamed. Special files are written in place."""

    def __init__(self, path: str, options: StreamOptions) -> None:
        super().__init__(path, options)
        self._path = os.path.realpath(path)
        self._part = ""

    def open_spool(self, directory: str | None) -> BinaryIO:
        if self._is_special():
            return super().open_spool(directory)
        folder, name = os.path.split(self._path)
        self._part = os.path.join(folder, f".{name[:_PART_NAME_CHARS]}.{secrets.token_hex(4)}.part")
        try:
            return cast(BinaryIO, open(self._part, "x+b", buffering=0))
        except FileNotFoundError:
            if hint := hint_at_scheme(self.url):
                raise FileNotFoundError(errno.ENOENT, f"no such directory{hint}", folder) from None
            raise

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        if not self._part:
            spool.seek(0)
            with open(self._path, "wb") as file:
                shutil.copyfileobj(spool, file, READ_BYTES)
            return
        os.fsync(spool.fileno())
        if exclusive:
            os.link(self._part, self._path)  # fails if the file exists, unlike a rename
        else:
            os.replace(self._part, self._path)
        _sync_directory(os.path.dirname(self._path))

    def discard(self, spool: BinaryIO) -> None:
        super().discard(spool)
        if self._part:
            with contextlib.suppress(FileNotFoundError):  # already renamed
                os.unlink(self._part)

    def exists(self) -> bool:
        return os.path.lexists(self._path)

    def _is_special(self) -> bool:
        try:
            return not stat.S_ISREG(os.stat(self._path).st_mode)
        except FileNotFoundError:
            return False


class CommandDestination(Destination):
    """The standard input of a shell command, which starts once the spool is complete."""

    def __init__(self, command: str, options: StreamOptions) -> None:
        super().__init__(f"pipe:{command}", options)
        self._command = command

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        spool.seek(0)
        # The text after `pipe:` is a shell command by definition. It never comes from data.
        with subprocess.Popen(self._command, shell=True, stdin=subprocess.PIPE, process_group=0) as process:  # noqa: S602
            assert process.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError):  # its exit status says why
                    shutil.copyfileobj(spool, process.stdin, READ_BYTES)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # or it would take the partial input for complete
                raise
            finally:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        if process.returncode:
            raise OSError(errno.EIO, f"the command exited with status {process.returncode}", self.url)


class StandardOutput(Destination):
    """Standard output (`-`), written once the spool is complete."""

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        spool.seek(0)
        shutil.copyfileobj(spool, sys.stdout.buffer, READ_BYTES)
        sys.stdout.buffer.flush()


class CloudDestination(Destination):
    """A URL that fsspec supports. Its filesystem uploads the spool in its own best way."""

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        filesystem, path = self._filesystem()
        if exclusive and filesystem.exists(path):
            raise taken(self.url)
        # The spool has no name; this path opens it again at its first byte.
        persistently(lambda: filesystem.put_file(f"/proc/self/fd/{spool.fileno()}", path), self)

    def exists(self) -> bool:
        filesystem, path = self._filesystem()
        return bool(filesystem.exists(path))

    def _filesystem(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        found: tuple[Any, str] = url_to_fs(self.url, **self.options.storage_options)
        return found


def _sync_directory(path: str) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
