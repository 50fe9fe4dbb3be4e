"""The processes that make pictures small. They are confined like those that run user code: what they decode is untrusted."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Final

from dfc.errors import Unavailable
from dfc.jobs.sandbox import thumbnails
from dfc.jobs.sandbox.parent import SampleFailed, Sandbox, UserCodeRefused
from dfc.jobs.sandbox.wire import WireSample
from dfc.limits import (
    THUMBNAIL_INPUT_BYTES_MAX,
    THUMBNAIL_MEMORY_BYTES,
    THUMBNAIL_OUTPUT_BYTES_MAX,
    THUMBNAIL_PICTURES,
    THUMBNAIL_S,
)

NICE: Final = 10  # whoever reads shards comes first


@dataclass
class _Process:
    sandbox: Sandbox
    made: int = 0
    used_s: float = 0.0  # when it was last used, by the monotonic clock


class PictureProcesses:
    """Processes that wait for pictures. All methods block, and may be called in any thread; a process ends with the thread that
    started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: list[_Process] = []
        self._directory = ""
        self._closed = False

    def make(self, data: bytes, pixels: int) -> bytes | str:
        """Make a picture small: a JPEG, or why there is none. Unavailable if no process can be started."""
        process = self._take()
        ends = True
        try:
            (sample,) = process.sandbox.call(*_call(data, pixels))
            ends = process.made >= THUMBNAIL_PICTURES
            refused = sample.fields.get(thumbnails.REFUSED)
            if refused is not None:
                return refused.decode("utf-8", "replace")
            return sample.fields[thumbnails.PICTURE]
        except SampleFailed as error:
            return f"the picture cannot be made small: {error}"
        except (KeyError, ValueError):
            return "the picture cannot be made small: its process sent an invalid reply"
        except (UserCodeRefused, OSError) as error:
            raise Unavailable(f"no process for pictures could be started: {error}") from error
        finally:
            self._give(process, ends=ends)

    def end_idle(self, idle_s: float) -> bool:
        """End those that have waited for so long; whether there are others left."""
        now_s = time.monotonic()
        with self._lock:
            old = [each for each in self._idle if now_s - each.used_s >= idle_s]
            self._idle = [each for each in self._idle if each not in old]
            is_any_left = bool(self._idle or self._busy)
            directory = "" if is_any_left else self._directory
            if not is_any_left:
                self._directory = ""
        for each in old:
            each.sandbox.close()
        if directory:
            shutil.rmtree(directory, ignore_errors=True)
        return is_any_left

    def close(self) -> None:
        """End all, also in the middle of a picture."""
        with self._lock:
            self._closed = True
            busy = list(self._busy)
        for each in busy:
            each.sandbox.interrupt()
        self.end_idle(0.0)

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise Unavailable("the node stops")
            if self._idle:
                process = self._idle.pop()
            else:
                self._directory = self._directory or tempfile.mkdtemp(prefix="dfc-pictures-")
                process = _Process(_sandbox(self._directory))
            self._busy.append(process)
        process.made += 1
        return process

    def _give(self, process: _Process, *, ends: bool) -> None:
        with self._lock:
            self._busy.remove(process)
            ends = ends or self._closed
            if not ends:
                process.used_s = time.monotonic()
                self._idle.append(process)
        if ends:
            process.sandbox.close()


def _call(data: bytes, pixels: int) -> tuple[int, WireSample]:
    asked = thumbnails.request(data, pixels)
    return asked.seed, asked.sample


def _sandbox(directory: str) -> Sandbox:
    return Sandbox(
        directory,
        lambda: None,
        own=thumbnails.__name__,
        nice=NICE,
        timeout_s=THUMBNAIL_S,
        calls=THUMBNAIL_PICTURES,
        memory_bytes=THUMBNAIL_MEMORY_BYTES,
        file_bytes=THUMBNAIL_INPUT_BYTES_MAX,
        reply_bytes_max=THUMBNAIL_OUTPUT_BYTES_MAX,
    )
