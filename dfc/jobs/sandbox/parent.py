"""The worker's side of a sandbox: starts the child process, exchanges frames with it under a deadline, and kills it."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from dfc.errors import Conflict
from dfc.jobs.sandbox.isolation import LENGTH, Call, Ready, Reply, Setup, WireSample, frame
from dfc.limits import (
    JOB_USER_FILE_BYTES,
    JOB_USER_FRAME_BYTES_MAX,
    JOB_USER_MEMORY_BYTES,
    JOB_USER_PROCESSES,
    JOB_USER_START_S,
    PIPE_BYTES,
)

T = TypeVar("T")
CHILD_ARGUMENTS: Final = ("-I", "-m", "dfc.jobs.sandbox.child")
_CHUNK_BYTES: Final = 1 << 20
_CHECK_S: Final = 0.25  # how often to check whether the job was cancelled while user code runs
_CPU_S_MAX: Final = 2**31 - 1


class UserCodeRefused(Conflict):
    """User code cannot be started: it is not installed, or its import fails."""

    code = "user_code_refused"


class SampleFailed(Exception):
    """User code failed for one sample. The message is for users."""


class Sandbox:
    """Runs user code in a child process, which is started again if a sample killed it. Use it as a context manager.

    `directory`: an empty directory for scratch space. `check` raises if the job has ended. `own`: a module of DFC whose `work`
    runs instead of user code. `calls`: how many samples it is for, at most; the processor time that it may use follows from it.
    """

    def __init__(
        self,
        directory: str,
        check: Callable[[], None],
        *,
        function: str | None = None,
        args: dict[str, Any] | None = None,
        command: list[str] | None = None,
        own: str = "",
        nice: int = 0,
        timeout_s: float,
        calls: int,
        memory_bytes: int = JOB_USER_MEMORY_BYTES,
        file_bytes: int = JOB_USER_FILE_BYTES,
        reply_bytes_max: int = JOB_USER_FRAME_BYTES_MAX,
    ) -> None:
        self.isolation: list[str] = []
        self._directory, self._check, self._timeout_s = directory, check, timeout_s
        self._reply_bytes_max = reply_bytes_max
        self._process: subprocess.Popen[bytes] | None = None
        self._setup = Setup(
            "",
            [path for path in sys.path if path and os.path.exists(path)],
            function,
            args or {},
            command or [],
            memory_bytes,
            min(_CPU_S_MAX, int(timeout_s * (calls + 1)) + int(JOB_USER_START_S)),
            file_bytes,
            JOB_USER_PROCESSES,
            own,
            nice,
        )

    def call(self, seed: int, sample: WireSample) -> list[WireSample]:
        """Run the code on a sample and return the resulting samples. SampleFailed, UserCodeRefused, and what `check` raises."""
        if self._process is None:
            self._start()
        answer = self._exchange(frame(Call(seed, sample)), self._timeout_s, Reply)
        if answer.error:
            raise SampleFailed(answer.error)
        return answer.samples

    def close(self) -> None:
        """Kill the child and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def interrupt(self) -> None:
        """Kill the child in the middle of a call, which another thread waits for: it raises SampleFailed."""
        process = self._process
        if process is not None:
            process.kill()  # whatever it has started dies with it

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        scratch = tempfile.mkdtemp(dir=self._directory)
        self._process = subprocess.Popen(
            [sys.executable, *CHILD_ARGUMENTS],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            close_fds=True,
            start_new_session=True,
        )
        setup = msgspec.structs.replace(self._setup, scratch=scratch)
        try:
            ready = self._exchange(frame(setup), JOB_USER_START_S, Ready)
        except SampleFailed as error:
            raise UserCodeRefused(f"cannot start the job's code: {error}") from None
        if ready.error:
            self.close()
            raise UserCodeRefused(f"cannot start the job's code: {ready.error}")
        self.isolation = ready.isolation

    def _exchange(self, request: bytes, timeout_s: float, kind: type[T]) -> T:
        """Send a frame and receive one at the same time. Kills the child unless it sends a valid reply in time."""
        try:
            content = self._transfer(request, time.monotonic() + timeout_s, timeout_s)
            return msgspec.msgpack.decode(content, type=kind)
        except BaseException as error:
            self.close()
            if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):
                raise SampleFailed("its process sent an invalid reply") from None
            raise

    def _transfer(self, request: bytes, deadline: float, timeout_s: float) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        to, source = process.stdin.fileno(), process.stdout.fileno()
        os.set_blocking(to, False)
        for pipe in (to, source):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(to, select.POLLOUT)
        unsent, received, expected = memoryview(request), bytearray(), LENGTH.size
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise SampleFailed(f"timed out after {timeout_s:g} s")
            self._check()
            for descriptor, _ in poll.poll(1000 * min(left_s, _CHECK_S)):
                if descriptor == to:
                    unsent = unsent[_write(to, unsent[:_CHUNK_BYTES]) :]
                    if not unsent:
                        poll.unregister(to)
                else:
                    data = os.read(source, min(_CHUNK_BYTES, expected - len(received)))
                    if not data:
                        raise SampleFailed(f"its process ended ({_ending(process)})")
                    received += data
            if len(received) == LENGTH.size == expected:
                expected += LENGTH.unpack(received)[0]
                if expected > self._reply_bytes_max:
                    raise SampleFailed("its process sent an invalid reply, or one that is too long")
            if len(received) == expected > LENGTH.size:
                if unsent:
                    raise SampleFailed("its process sent a reply before the request")
                return bytes(received[LENGTH.size :])


def _write(to: int, data: memoryview) -> int:
    try:
        return os.write(to, data)
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(data)  # the child is closing the pipe, which the next read will show


def _ending(process: subprocess.Popen[bytes]) -> str:
    """Describe how the process ended. Waits a moment, since the pipe is closed before the process ends."""
    try:
        status = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "it closed its pipe"
    if status > 128:  # a signal that ended the first process of the namespace, as reported by the process that waits for it
        status = 128 - status
    return f"killed by {signal.Signals(-status).name}" if -64 < status < 0 else f"exit status {status}"
