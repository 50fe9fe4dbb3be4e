"""Uploads to clusters, web servers, files and cloud storage: whole or not at all, in the background if wanted."""

from __future__ import annotations

import base64
import contextlib
import contextvars
import errno
import hashlib
import io
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
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from dfc.client.client import Client
from dfc.client.transfers import READ_BYTES, FileObjectSource
from dfc.errors import BadRequest, DfcError, NotFound, PreconditionFailed, Unreachable
from dfc.http.retry import Cancellation, cancelled_by, current_cancellation, error_from_answer, is_worth_retrying, retry_after_s
from dfc.inputs.base import LOG, InputError
from dfc.inputs.sources.cluster import cluster_at, is_cluster, is_in_vain, token_for, transport_for
from dfc.inputs.sources.streams import (
    DEFAULT_OPTIONS,
    StreamOptions,
    hint_at_scheme,
    kind_of,
    local_path,
    origin_of,
    shown,
    split_cluster_url,
)
from dfc.inputs.sources.web import said, sendable
from dfc.limits import ERROR_BODY_BYTES_MAX
from dfc.names import check_bucket_name, check_object_name, parse_object_path
from dfc.wire import OBJECTS_PATH

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# --- The base class of upload destinations: each stores a complete *spool* (a temporary file), whole or not at all.

_TRIES_SILENT: Final = 3  # failed tries before a warning, since the URL may be mistyped
_NEVER: Final = Cancellation()


class Destination(ABC):
    """The destination of one upload, at `url`."""

    def __init__(self, url: str, options: StreamOptions) -> None:
        self.url = url
        self.options = options

    def open_spool(self, directory: str | None) -> BinaryIO:
        """Open an empty, unnamed file to fill, in the directory (None: TMPDIR).

        It is unbuffered, because a forked child would write the buffered bytes a second time when it exits.
        """
        return cast(BinaryIO, tempfile.TemporaryFile(buffering=0, dir=directory, prefix="dfc-"))

    @abstractmethod
    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        """Store all bytes of the spool. `exclusive`: FileExistsError if the destination exists. DfcError, OSError."""

    def discard(self, spool: BinaryIO) -> None:
        """Free the spool, stored or not. Idempotent."""
        with contextlib.suppress(OSError):  # buffered bytes may not fit on the disk, but are no longer needed
            spool.close()

    def exists(self) -> bool:
        """Whether something is stored there, as far as the destination can tell."""
        return False


def persistently(attempt: Callable[[], None], destination: Destination) -> None:
    """Call `attempt` until it succeeds, retrying after network errors and when servers are busy."""
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
                LOG.warning("%s: still retrying: %s", shown(url), said(problem))
        cancellation.wait(delay_s)


def taken(url: str, text: str = "") -> FileExistsError:
    """The error for a destination that exists and is not to be replaced."""
    return FileExistsError(errno.EEXIST, text or os.strerror(errno.EEXIST), shown(url))


# --- Files that are uploaded when closed, whole or not at all, and uploads in background threads.


class UploadFile(io.BufferedIOBase):
    """A writable, seekable binary file. `close` stores its contents; if a `with` block raises, nothing is stored.

    The same holds under other layers: a file that is closed while an exception raised after its opening propagates is not
    stored. Neither is a file that is garbage collected unclosed, or one in which a write has failed. Then whatever was stored
    at the destination before stays. With `autocommit=False`, only `commit` stores it, and `discard` drops it. `exclusive`:
    FileExistsError if the destination exists. `directory` is where the temporary file goes (None: TMPDIR).
    """

    mode = "wb"

    def __init__(
        self, destination: Destination, directory: str | None = None, *, exclusive: bool = False, autocommit: bool = True
    ) -> None:
        super().__init__()
        self._spool: BinaryIO | None = None
        self.name = destination.url
        self._destination = destination
        self._directory = directory
        self._exclusive = exclusive
        self._autocommit = autocommit
        self._failed: BaseException | None = None
        self._forgotten = False
        self._handled = sys.exc_info()[1]  # what was being handled when it was opened
        self._process = os.getpid()
        self._spool = destination.open_spool(directory)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        spool = self._open_spool()
        view = memoryview(data).cast("B")
        try:
            at = 0
            while at < len(view):  # a full disk takes a part before it refuses the rest
                at += spool.write(view[at:])
            return at
        except OSError as problem:
            self._failed = problem
            path = getattr(self._spool, "name", None)
            raise _named(problem, os.path.dirname(path) if isinstance(path, str) else self._directory) from None

    def tell(self) -> int:
        return self._open_spool().tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        spool = self._open_spool()
        spool.seek(offset, whence)
        return spool.tell()

    def close(self) -> None:
        """Store the contents. DfcError, OSError; the file is closed in any case. Idempotent."""
        if self.closed:
            return
        problem = sys.exc_info()[1]
        if self._forgotten:
            self.__del__()
        elif problem is not None and problem is not self._handled:
            # A text layer, a compressor or fsspec's OpenFile closes the file like this when its `with` block fails.
            LOG.warning("%s was not stored: it was closed because of %r", shown(self.name), problem)
            self.discard()
        elif self._autocommit:
            self.commit()
        else:
            super().close()

    def commit(self) -> None:
        """Store the contents and close the file. DfcError, OSError."""
        spool = self._spool
        if spool is None:
            return
        try:
            check_process(self._process)
            if self._failed is not None:
                raise OSError(errno.EIO, "not stored, because a write failed", shown(self.name))
            try:
                self._destination.store(spool, exclusive=self._exclusive)
            except Exception as problem:
                problem.add_note(f"while storing {shown(self.name)}")
                raise
        finally:
            self.discard()

    def discard(self) -> None:
        """Drop the contents. Idempotent."""
        spool, self._spool = self._spool, None
        if spool is not None and self._process == os.getpid():
            self._destination.discard(spool)
        super().close()

    abort = discard

    def __enter__(self) -> UploadFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if self._spool is not None:
            if self._process == os.getpid():
                LOG.warning("%s was not stored, because it was never closed", shown(self.name))
            self.discard()

    def _dealloc_warn(self, _source: object) -> None:
        """Called by text layers and buffers that are garbage collected, before they close the file below (CPython only)."""
        self._forgotten = True

    def _open_spool(self) -> BinaryIO:
        if self._spool is None or self.closed:
            raise ValueError("I/O operation on closed file")
        check_process(self._process)
        return self._spool


class Uploads:
    """Runs uploads in threads. Including the spool that the caller fills, at most `parallel` spools take space at a time.

    The next call raises the first failure. Use it from one thread only.
    """

    def __init__(self, parallel: int, name: str = "dfc-upload") -> None:
        if parallel < 1:
            raise ValueError(f"the number of parallel uploads must be at least 1, not {parallel}")
        self._parallel = parallel
        self._executor = ThreadPoolExecutor(parallel, thread_name_prefix=name)
        self._running: dict[Future[None], Callable[[], object]] = {}  # each with what drops its contents
        self._cancellation = Cancellation()
        self._process = os.getpid()

    def add(self, upload: Callable[[], None], drop: Callable[[], object] = lambda: None) -> None:
        """Start an upload; wait while as many as allowed are running. `drop` is called if it is aborted before it has begun."""
        check_process(self._process)
        context = contextvars.copy_context()
        self._running[self._executor.submit(context.run, self._run, upload)] = drop
        while len(self._running) >= self._parallel:
            self._collect()

    def check(self) -> None:
        """Raise the error of an upload that has failed."""
        if any(future.done() for future in self._running):
            self._collect()

    def finish(self) -> None:
        """Wait for all uploads."""
        check_process(self._process)
        while self._running:
            self._collect()
        self._executor.shutdown()

    def stop(self, *, at_once: bool = False) -> list[BaseException]:
        """Wait for all uploads, also those that no thread has begun, or abort them if `at_once`. Returns errors that were not
        raised yet."""
        if self._process != os.getpid():
            return []
        if at_once:
            self._cancellation.cancel()
        self._executor.shutdown(wait=True, cancel_futures=at_once)
        running, self._running = self._running, {}
        problems = [future.exception() for future in running if not future.cancelled()]
        for future, drop in running.items():
            if future.cancelled():
                try:
                    drop()
                except Exception as error:  # the others are dropped all the same
                    problems.append(error)
        return [problem for problem in problems if problem is not None]

    def _run(self, upload: Callable[[], None]) -> None:
        with cancelled_by(self._cancellation):
            upload()

    def _collect(self) -> None:
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in done:
            del self._running[future]
        for future in done:
            future.result()


def check_process(number: int) -> None:
    """ValueError in a forked child, since the threads and files belong to the parent."""
    if number != os.getpid():
        raise ValueError("opened by another process before a fork; open it in the process that uses it")


def _named(problem: OSError, directory: str | None) -> OSError:
    """The same error with the name of the directory that is out of space, so that the user can act on it."""
    if problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or problem.filename is not None:
        return problem
    return OSError(problem.errno, os.strerror(problem.errno), directory or tempfile.gettempdir())


# --- Upload destinations on servers: DFC clusters, and any server that accepts PUT.

_HOPS_MAX: Final = 5
_REDIRECTS: Final = frozenset((307, 308))  # the others turn a PUT into a GET


class ClusterDestination(Destination):
    """An object of a cluster. The client verifies the checksum and retries."""

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
            raise taken(self.url) from None

    def exists(self) -> bool:
        try:
            self._client.stat(self._bucket, self._name)
        except NotFound:
            return False
        return True


class WebDestination(Destination):
    """A URL that accepts PUT. A DFC node is recognised once the spool is complete; other servers also get Content-MD5."""

    def __init__(self, url: str, options: StreamOptions) -> None:
        super().__init__(url, options)
        parts = urlsplit(url)
        if not parts.hostname:
            raise BadRequest(f"{shown(url)} is not the URL of an object: it has no host")
        netloc = parts.netloc.rpartition("@")[2]
        self._origin = origin_of(url)
        self._target = urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))
        self._path = parts.path
        self._queried = bool(parts.query)  # a signed URL, not one of a DFC node
        self._headers = dict(options.headers)
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        elif token := token_for(self._origin, options):
            # For a DFC node that is not recognised because it cannot answer now.
            self._headers.setdefault("Authorization", f"Bearer {token}")

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        own = self._cluster()
        if own is not None:
            own.store(spool, exclusive=exclusive)
            return
        digest = _md5(spool)
        headers = {**self._headers, "Content-MD5": base64.b64encode(digest).decode()}
        if exclusive:
            headers["If-None-Match"] = "*"
        tries = 0

        def attempt() -> None:
            nonlocal tries
            tries += 1
            try:
                self._send(spool, headers)
            except ValueError as problem:  # invalid host names and port numbers
                text = f"{shown(self.url)} is not a valid URL, or redirects to an invalid one: {problem}"
                raise InputError(text, url=self.url) from None

        try:
            persistently(attempt, self)
        except PreconditionFailed:
            # An earlier try whose answer was lost may have stored it.
            found = self._has(spool.seek(0, os.SEEK_END), digest) if tries > 1 else False
            if not found:
                unsure = "exists, perhaps stored by an earlier try of this upload whose answer was lost"
                raise taken(self.url, "" if found is False else unsure) from None

    def exists(self) -> bool:
        own = self._cluster()
        if own is not None:
            return own.exists()
        with transport_for(self.options).request("HEAD", self._target, self._headers) as answer:
            return answer.status < 300

    def _has(self, size: int, digest: bytes) -> bool | None:
        """Whether the server has these bytes, by length and MD5; None if it does not say."""
        try:
            with transport_for(self.options).request("HEAD", self._target, self._headers) as answer:
                if answer.status != 200:
                    return None
                headers = answer.headers
        except DfcError:
            return None
        if (headers.get("Content-Length") or str(size)) != str(size):
            return False
        if named := headers.get("Content-MD5"):
            return named == base64.b64encode(digest).decode()
        tag = (headers.get("ETag") or "").strip('"').lower()
        # S3's ETag is the MD5 if the object was uploaded in one piece without a key. Other ETags of this length differ.
        return True if tag == digest.hex() else None

    def _cluster(self) -> ClusterDestination | None:
        if self._queried or not self.options.direct or not is_cluster(self._origin, self.options):
            return None
        path = self._path
        if path.startswith(OBJECTS_PATH):
            path = path[len(OBJECTS_PATH) - 1 :]
        bucket, name = parse_object_path(path)
        if not name:
            raise BadRequest(f"{shown(self.url)} is not the URL of an object: it has no name after the bucket")
        return ClusterDestination(cluster_at(self._origin, self.options).client, bucket, name, self.url, self.options)

    def _send(self, spool: BinaryIO, headers: dict[str, str]) -> None:
        url = self._target
        for _ in range(_HOPS_MAX):
            spool.seek(0)
            source = FileObjectSource(spool)
            if "If-None-Match" in headers:
                source.replayable = False  # no retry hidden from `store`, on an old connection that turns out dead
            with transport_for(self.options).request("PUT", url, headers, source) as answer:
                location = answer.headers.get("Location")
                if answer.status in _REDIRECTS and location:
                    url = sendable(urljoin(url, location))
                    if origin_of(url) != self._origin:  # another server must not get credentials meant for this one
                        headers = {name: value for name, value in headers.items() if name not in self._headers}
                    continue
                body = answer.read_all(ERROR_BODY_BYTES_MAX)
                if not 200 <= answer.status < 300:
                    raise error_from_answer(answer.status, answer.headers, body, f"PUT {shown(url)}")
                if answer.early:
                    raise Unreachable(f"PUT {shown(url)}: answered {answer.status} before the whole body was sent")
                return
        raise Unreachable(f"PUT {shown(self._target)}: more than {_HOPS_MAX} redirects")


def _md5(spool: BinaryIO) -> bytes:
    spool.seek(0)
    hasher = hashlib.md5(usedforsecurity=False)
    while data := spool.read(READ_BYTES):
        hasher.update(data)
    return hasher.digest()


# --- Destinations by their URLs: those above, a file, cloud storage by fsspec, a command.
#
# What was stored before stays until the new bytes are complete.

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
