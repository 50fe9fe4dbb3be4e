"""Streams of shards that are not on a web server: files, standard input, output of commands, and fsspec (S3, GCS, …)."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, Final, NamedTuple

from dfc.http.retry import Cancellation
from dfc.inputs.base import Counts, InputError, ShardChanged, ShardShort, ShardUnreadable
from dfc.inputs.sources.streams import Stream, StreamOptions, hint_at_scheme, kind_of, local_path
from dfc.limits import INPUT_PIPE_CHARS_KEPT, MIB

_FSSPEC_BLOCK_BYTES: Final = 8 * MIB  # object stores have latencies of tens of milliseconds: few, large requests
_PIPE_BYTES: Final = 1 * MIB  # instead of 64 KiB, for fewer system calls; the maximum for unprivileged users
_SKIP_BYTES: Final = 1 * MIB
_END_WAIT_S: Final = 5.0  # for a command that has closed its output


def open_local(
    url: str,
    start: int,
    end: int | None,
    etag: str | None,
    options: StreamOptions,
    counts: Counts | None,
    cancellation: Cancellation | None,
) -> Stream:
    """Open the stream of a URL that is not on the web. See `open_stream`."""
    part = _Part(url, start, end, counts, cancellation or Cancellation())
    kind = kind_of(url)
    if kind == "file":
        return FileStream(part, etag)
    if kind == "fsspec":
        return FsspecStream(part, etag, options)
    return PipeStream(part) if kind == "pipe" else StandardInput(part)


class _Part(NamedTuple):
    """The arguments of all local streams."""

    url: str
    start: int
    end: int | None
    counts: Counts | None
    cancellation: Cancellation


class _LocalStream(Stream):
    """Fills buffers from a raw file at `_position`, up to `_end`."""

    def __init__(self, part: _Part) -> None:
        self.url, self._position, self._end, self._counts, self._cancellation = part
        self._done = False

    def readinto(self, buffer: bytearray | memoryview) -> int:
        view = memoryview(buffer).cast("B")
        if self._end is not None:
            view = view[: max(self._end - self._position, 0)]
        done = 0
        while done < len(view) and not self._done:
            try:
                count = self._some(view[done:])
            except OSError as problem:
                self._cancellation.check()
                if done:
                    break  # return these bytes first; the next read meets the error again
                raise ShardUnreadable(f"{self.url}: {problem.strerror or problem}", url=self.url) from problem
            self._done = count == 0
            self._position += count
            done += count
        if self._done and not done:
            self._cancellation.check()
            self._finish()
        if self._counts is not None:
            self._counts.add(size=done)
        return done

    def abort(self) -> None:
        self._cancellation.cancel()

    def _some(self, view: memoryview) -> int:
        raise NotImplementedError

    def _finish(self) -> None:
        """Called at the end of the file, possibly more than once. Raises if the stream is incomplete."""

    def _skip(self, count: int) -> None:
        """Skip to the start in a stream that cannot seek."""
        scratch = memoryview(bytearray(min(count, _SKIP_BYTES)))
        while count > 0:
            got = self._some(scratch[:count])
            if got == 0:
                raise ShardUnreadable(f"{self.url} ends {count} bytes before the requested range", url=self.url)
            count -= got

    def _check_version(self, planned: str | None) -> None:
        if planned and self.etag and planned != self.etag:
            raise ShardChanged(f"{self.url} was replaced since it was looked up", url=self.url)


class FileStream(_LocalStream):
    """A local file. Its `etag` is made of its size and modification time."""

    def __init__(self, part: _Part, etag: str | None) -> None:
        super().__init__(part)
        url, start = part.url, part.start
        path = local_path(url)
        try:
            self._file = io.FileIO(path)
        except OSError as problem:
            raise ShardUnreadable(f"{path}: {problem.strerror}{hint_at_scheme(path)}", url=url) from problem
        try:
            facts = os.fstat(self._file.fileno())
            if stat.S_ISREG(facts.st_mode):
                self.size, self.etag = facts.st_size, file_etag(facts)
                self._check_version(etag)
                if start > self.size:
                    raise ShardShort(f"{path} has only {self.size} bytes; cannot read from byte {start}", url=url)
                self._file.seek(start)
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            else:
                self._skip(start)
        except BaseException:
            self._file.close()
            raise

    def _some(self, view: memoryview) -> int:
        return self._file.readinto(view)

    def _finish(self) -> None:
        if self.size is not None and self._position < min(self.size, self._end if self._end is not None else self.size):
            raise ShardUnreadable(f"{self.url} was truncated while it was being read", url=self.url)

    def close(self) -> None:
        self._file.close()


def file_etag(facts: os.stat_result) -> str:
    """An ETag for a local file, from its size and modification time."""
    return f"{facts.st_size:x}-{facts.st_mtime_ns:x}"


class StandardInput(_LocalStream):
    """Standard input, readable once; closing the stream leaves it open."""

    def __init__(self, part: _Part) -> None:
        super().__init__(part)
        self._file: BinaryIO = sys.stdin.buffer
        self._skip(part.start)

    def _some(self, view: memoryview) -> int:
        return self._file.readinto(view)  # type: ignore[attr-defined, no-any-return]

    def close(self) -> None:
        pass


class PipeStream(_LocalStream):
    """The output of a shell command (in bash with `pipefail` if installed). It must exit with status 0."""

    def __init__(self, part: _Part) -> None:
        super().__init__(part)
        self._owner = os.getpid()
        bash = shutil.which("bash")
        shell = [bash, "-o", "pipefail", "-c"] if bash else ["/bin/sh", "-c"]
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [*shell, part.url.removeprefix("pipe:")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            process_group=0,  # so that a whole pipeline can be killed
        )
        assert self._process.stdout is not None
        self._output: Any = self._process.stdout
        with suppress(OSError):  # if this user's limit for pipes is reached, a small one works too
            fcntl.fcntl(self._output, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._cancellation.add(self._kill)
        try:
            self._skip(part.start)
        except BaseException:
            self.close()
            raise

    def _some(self, view: memoryview) -> int:
        return int(self._output.readinto(view))

    def _finish(self) -> None:
        try:
            status = self._process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            return  # it has closed its output but is still running
        if status != 0:
            size = self._said.seek(0, os.SEEK_END)
            self._said.seek(max(size - INPUT_PIPE_CHARS_KEPT, 0))
            last_words = self._said.read().decode(errors="replace").strip()
            raise ShardUnreadable(f"{self.url} exited with status {status}: {last_words}", url=self.url)

    def _kill(self) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        if self._output.closed:
            return
        self._output.close()
        self._said.close()
        if os.getpid() == self._owner:  # after a fork the command belongs to the parent
            self._cancellation.remove(self._kill)
            self._kill()
            self._process.wait()

    def __del__(self) -> None:
        if hasattr(self, "_output"):
            self.close()


class FsspecStream(_LocalStream):
    """A file on an fsspec filesystem. If reading fails, it is reopened at the same byte."""

    def __init__(self, part: _Part, etag: str | None, options: StreamOptions) -> None:
        super().__init__(part)
        import fsspec

        self._filesystem, self._path = fsspec.core.url_to_fs(part.url, **options.storage_options)
        self._retries = options.retries
        self._policy = options.policy
        self._file: Any = None
        facts = self._trying(lambda: self._filesystem.info(self._path))
        self.size = facts.get("size")
        self._version = _version(facts)
        self._begun = False
        self.etag = str(facts.get("ETag") or facts.get("etag") or "").strip('"')
        self._check_version(etag)
        self._trying(self._open)

    def _open(self) -> None:
        if self._begun and _version(self._filesystem.info(self._path)) != self._version:
            raise ShardChanged(f"{self.url} was replaced while it was being read", url=self.url)
        self._file = self._filesystem.open(self._path, "rb", block_size=_FSSPEC_BLOCK_BYTES)
        self._file.seek(self._position)
        self._begun = True

    def _finish(self) -> None:
        if self.size is not None and self._position < min(self.size, self._end if self._end is not None else self.size):
            raise ShardUnreadable(f"{self.url} ended early, at byte {self._position} of {self.size}", url=self.url)

    def _some(self, view: memoryview) -> int:
        def read() -> int:
            if self._file is None:
                self._open()
            return int(self._file.readinto(view))

        return int(self._trying(read))

    def _trying(self, step: Callable[[], Any]) -> Any:
        """Call `step`, retrying after errors that may be temporary."""
        attempt = 0
        while True:
            try:
                return step()
            except InputError:
                raise
            except (FileNotFoundError, PermissionError, IsADirectoryError) as problem:
                raise ShardUnreadable(f"{self.url}: {problem or type(problem).__name__}", url=self.url) from problem
            except (ImportError, ValueError, TypeError, NotImplementedError):
                raise  # a bug in the program, or a missing library
            except Exception as problem:  # each of these libraries has its own errors
                self.close()
                if attempt >= self._retries:
                    raise ShardUnreadable(f"{self.url}: {problem or type(problem).__name__}", url=self.url) from problem
            if self._counts is not None:
                self._counts.add(retries=1)
            self._cancellation.wait(self._policy.delay_s(attempt, None))
            attempt += 1

    def close(self) -> None:
        opened, self._file = self._file, None
        if opened is not None:
            opened.close()


def _version(facts: dict[str, Any]) -> list[Any]:
    """The facts from fsspec that change when a file is replaced."""
    return [
        facts.get(name) for name in ("size", "ETag", "etag", "generation", "created", "mtime", "LastModified", "last_modified")
    ]
