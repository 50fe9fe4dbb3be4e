"""What is done for jobs while nobody waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

_log: Final = logging.getLogger("dfc.proxy.jobs")


class Background:
    """Tasks that end by themselves, or are cancelled when the service of jobs stops."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin something. Its error is logged: the next start does what is left to be done."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("cleaning up finished jobs failed; the next start of the proxy tries again", exc_info=error)
