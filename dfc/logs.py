"""Logs on standard error, one JSON object per line: events through `logging`, access lines through a separate buffer.

An access line costs a few microseconds: it is formatted by hand, and lines are written together a few times a second.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from typing import Final

ACCESS_FLUSH_S: Final = 0.5
CUT: Final = ',"cut":true'


class JsonFormatter(logging.Formatter):
    """Formats an event as JSON: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(level: str) -> None:
    """Send this process's log events of `level` and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def timestamp(seconds: float) -> str:
    """Format a time as RFC 3339, UTC, with milliseconds."""
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


class AccessLog:
    """Buffers access lines and writes them to a file descriptor in its own thread, so that a slow pipe stalls no request.

    When the reader of the pipe is so slow that `limit_lines` are waiting, further lines are dropped and counted.
    """

    def __init__(self, descriptor: int = 2, limit_lines: int = 100_000) -> None:
        self._descriptor = descriptor
        self._limit = limit_lines
        self._lines: list[str] = []
        self._second = 0
        self._stamp = ""
        self.dropped_lines = 0
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
        self._thread.start()

    def line(
        self,
        remote: str,
        method: str,
        path: str,
        status: int,
        sent: int,
        received: int,
        seconds: float,
        request_id: str,
        *,
        cut: bool = False,
    ) -> None:
        """`cut`: this node broke the answer off; `status` was sent before that was known."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        lines = self._lines
        if len(lines) >= self._limit:
            self.dropped_lines += 1
            return
        if '"' in path or "\\" in path or not path.isprintable():
            path = json.dumps(path)[1:-1]
        lines.append(
            f'{{"time":"{self._stamp}.{int((now - second) * 1000):03d}Z","access":"{method} {path}","status":{status},'
            f'"sent":{sent},"received":{received},"seconds":{seconds:.6f},"remote":"{remote}",'
            f'"request_id":"{request_id}"{CUT if cut else ""}}}\n'
        )

    def flush(self) -> None:
        """Write the buffered lines; called by the log's thread and on close."""
        lines, self._lines = self._lines, []
        data = memoryview("".join(lines).encode("utf-8", "backslashreplace"))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self.dropped_lines += len(lines)  # standard error is closed: not a reason to stop serving

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(ACCESS_FLUSH_S)
            self.flush()

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=2)
        self.flush()
