"""Where uploads go: a DFC cluster, any server that takes PUT, a file, a cloud through fsspec, a command.

Every kind takes a complete *spool* (a temporary file) and stores it as one thing, or not at all: what was there before stays
until the new bytes are whole.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Any, BinaryIO, Final, cast
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from dfc.client.client import Client
from dfc.client.source import READ_BYTES, FileObjectSource
from dfc.errors import BadRequest, DfcError, NotFound, PreconditionFailed, Unreachable
from dfc.http.blocking import ERROR_BODY_BYTES_MAX
from dfc.http.problems import error_from_answer, is_worth_retrying, retry_after_s
from dfc.http.retry import Cancellation, current_cancellation
from dfc.inputs.base import LOG
from dfc.inputs.sources.cluster import cluster_at, is_cluster, is_in_vain, token_for, transport_for
from dfc.inputs.sources.streams import DEFAULT_OPTIONS, StreamOptions
from dfc.inputs.sources.urls import hint_at_scheme, kind_of, local_path, origin_of, shown, split_cluster_url
from dfc.inputs.sources.websource import said
from dfc.names import check_bucket_name, check_object_name, parse_object_path

_OBJECTS_PATH: Final = "/v1/objects/"
_HOPS_MAX: Final = 5
_TRIES_SILENT: Final = 3  # in vain; then somebody is told who may have mistyped a URL
_REDIRECTS: Final = frozenset((307, 308))  # the others turn a PUT into a GET
_PART_NAME_CHARS: Final = 60  # with all that is added, at most 255 bytes
_NEVER: Final = Cancellation()


class Destination(ABC):
    """One thing to be stored at `url`."""

    def __init__(self, url: str, options: StreamOptions) -> None:
        self.url = url
        self.options = options

    def open_spool(self, directory: str | None) -> BinaryIO:
        """An empty file without a name to fill, in the directory (None: TMPDIR).

        Without a buffer: a forked child would write what is in it a second time when it ends.
        """
        return cast(BinaryIO, tempfile.TemporaryFile(buffering=0, dir=directory, prefix="dfc-"))

    @abstractmethod
    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        """Store all bytes of the spool; `exclusive`: FileExistsError when something is there. DfcError, OSError."""

    def discard(self, spool: BinaryIO) -> None:
        """Free the spool, stored or not. Idempotent."""
        with contextlib.suppress(OSError):  # what is still buffered may not fit on the disk, and is not wanted
            spool.close()

    def exists(self) -> bool:
        """Whether something is stored there, as far as that can be asked."""
        return False


def destination_of(url: str | os.PathLike[str], options: StreamOptions = DEFAULT_OPTIONS) -> Destination:
    """For `http(s)://…`, `dfc:bucket/object`, a path or `file:`, `pipe:command`, `-`, or what fsspec knows.

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
        return ClusterDestination(cluster_at(origin_of(options.cluster_url), options).client, bucket, name, text, options)
    return WebDestination(text, options) if kind == "web" else CloudDestination(text, options)


class ClusterDestination(Destination):
    """An object of a cluster; checked by its checksum, tried again by the client."""

    def __init__(self, client: Client, bucket: str, name: str, url: str, options: StreamOptions) -> None:
        super().__init__(url, options)
        self._client = client
        self._bucket = check_bucket_name(bucket)
        self._name = check_object_name(name)

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        spool.seek(0)
        try:
            self._client.put(self._bucket, self._name, spool, if_none_match="*" if exclusive else None)
        except PreconditionFailed:
            raise _taken(self.url) from None

    def exists(self) -> bool:
        try:
            self._client.stat(self._bucket, self._name)
        except NotFound:
            return False
        return True


class WebDestination(Destination):
    """A URL that takes PUT. A DFC node is recognised when the spool is complete; other servers get Content-MD5 along."""

    def __init__(self, url: str, options: StreamOptions) -> None:
        super().__init__(url, options)
        parts = urlsplit(url)
        if not parts.hostname:
            raise BadRequest(f"not the URL of an object: {shown(url)}")
        netloc = parts.netloc.rpartition("@")[2]
        self._origin = origin_of(url)
        self._target = urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))
        self._path = parts.path
        self._queried = bool(parts.query)  # a signed URL, not one of DFC's
        self._headers = dict(options.headers)
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        elif token := token_for(self._origin, options):
            # For a node of DFC that is not recognised, since it cannot answer just now.
            self._headers.setdefault("Authorization", f"Bearer {token}")

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        own = self._cluster()
        if own is not None:
            own.store(spool, exclusive=exclusive)
            return
        digest = base64.b64encode(_md5(spool)).decode()
        headers = {**self._headers, "Content-MD5": digest, **({"If-None-Match": "*"} if exclusive else {})}
        try:
            _persistently(lambda: self._put(spool, headers), self)
        except PreconditionFailed:
            raise _taken(self.url) from None

    def exists(self) -> bool:
        own = self._cluster()
        if own is not None:
            return own.exists()
        with transport_for(self.options).request("HEAD", self._target, self._headers) as answer:
            return answer.status < 300

    def _cluster(self) -> ClusterDestination | None:
        if self._queried or not self.options.direct or not is_cluster(self._origin, self.options):
            return None
        path = self._path
        if path.startswith(_OBJECTS_PATH):
            path = path[len(_OBJECTS_PATH) - 1 :]
        bucket, name = parse_object_path(path)
        if not name:
            raise BadRequest(f"not the URL of an object: {shown(self.url)}")
        return ClusterDestination(cluster_at(self._origin, self.options).client, bucket, name, self.url, self.options)

    def _put(self, spool: BinaryIO, headers: dict[str, str]) -> None:
        url = self._target
        for _ in range(_HOPS_MAX):
            spool.seek(0)
            source = FileObjectSource(spool)
            with transport_for(self.options).request("PUT", url, headers, source) as answer:
                location = answer.headers.get("Location")
                if answer.status in _REDIRECTS and location:
                    url = urljoin(url, location)
                    if origin_of(url) != self._origin:  # it gets nothing that was meant for this server
                        headers = {name: value for name, value in headers.items() if name not in self._headers}
                    continue
                body = answer.read_all(ERROR_BODY_BYTES_MAX)
                if not 200 <= answer.status < 300:
                    raise error_from_answer(answer.status, answer.headers, body, f"PUT {shown(url)}")
                if answer.early:
                    raise Unreachable(f"PUT {shown(url)}: was answered with {answer.status} before all of it was sent")
                return
        raise Unreachable(f"PUT {shown(self._target)}: redirected more than {_HOPS_MAX} times")


class FileDestination(Destination):
    """A file: written beside its place under a hidden name, synced, then renamed. What is no regular file is written into."""

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
                raise FileNotFoundError(errno.ENOENT, f"there is no such directory{hint}", folder) from None
            raise

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        if not self._part:
            spool.seek(0)
            with open(self._path, "wb") as file:
                shutil.copyfileobj(spool, file, READ_BYTES)
            return
        os.fsync(spool.fileno())
        if exclusive:
            os.link(self._part, self._path)  # fails when it is there, which a rename does not
        else:
            os.replace(self._part, self._path)
        _sync_directory(os.path.dirname(self._path))

    def discard(self, spool: BinaryIO) -> None:
        super().discard(spool)
        if self._part:
            with contextlib.suppress(FileNotFoundError):  # it has its own name by now
                os.unlink(self._part)

    def exists(self) -> bool:
        return os.path.lexists(self._path)

    def _is_special(self) -> bool:
        try:
            return not stat.S_ISREG(os.stat(self._path).st_mode)
        except FileNotFoundError:
            return False


class CommandDestination(Destination):
    """The standard input of a shell command, which starts when the spool is complete."""

    def __init__(self, command: str, options: StreamOptions) -> None:
        super().__init__(f"pipe:{command}", options)
        self._command = command

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        spool.seek(0)
        # What follows `pipe:` is a shell command by definition; it never comes out of data.
        with subprocess.Popen(self._command, shell=True, stdin=subprocess.PIPE, process_group=0) as process:  # noqa: S602
            assert process.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError):  # its exit status says why
                    shutil.copyfileobj(spool, process.stdin, READ_BYTES)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # or it would take what it has for all
                raise
            finally:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        if process.returncode:
            raise OSError(errno.EIO, f"the command ended with status {process.returncode}", self.url)


class StandardOutput(Destination):
    """`-`: written when the spool is complete."""

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        spool.seek(0)
        shutil.copyfileobj(spool, sys.stdout.buffer, READ_BYTES)
        sys.stdout.buffer.flush()


class CloudDestination(Destination):
    """What fsspec has a filesystem for, which uploads the spool by its own best way."""

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        filesystem, path = self._filesystem()
        if exclusive and filesystem.exists(path):
            raise _taken(self.url)
        # A spool has no name; this one opens it anew from its first byte.
        _persistently(lambda: filesystem.put_file(f"/proc/self/fd/{spool.fileno()}", path), self)

    def exists(self) -> bool:
        filesystem, path = self._filesystem()
        return bool(filesystem.exists(path))

    def _filesystem(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        found: tuple[Any, str] = url_to_fs(self.url, **self.options.storage_options)
        return found


def _persistently(attempt: Callable[[], None], destination: Destination) -> None:
    """Try until it works; errors of networks and busy servers are worth another try."""
    url, options = destination.url, destination.options
    cancellation = current_cancellation(_NEVER)
    for number in count():
        cancellation.check()
        try:
            attempt()
            return
        except (DfcError, ConnectionError, TimeoutError) as problem:
            cancellation.check()
            if number >= options.retries:
                raise
            delay_s = options.policy.delay_s(number, None)
            if isinstance(problem, DfcError):
                if not is_worth_retrying(problem) or is_in_vain(problem, url, options):
                    raise
                delay_s = options.policy.delay_s(number, retry_after_s(problem))
            if number + 1 == _TRIES_SILENT:
                LOG.warning("%s: still trying: %s", shown(url), said(problem))
        cancellation.wait(delay_s)


def _md5(spool: BinaryIO) -> bytes:
    spool.seek(0)
    hasher = hashlib.md5(usedforsecurity=False)
    while data := spool.read(READ_BYTES):
        hasher.update(data)
    return hasher.digest()


def _sync_directory(path: str) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _taken(url: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), shown(url))
