"""The interface of engines: bytes of a task in, bytes of its result out, or one of two errors.

An engine forgets a task once it has answered; retries, order and the journal are up to the jobs service.
"""

from __future__ import annotations

from typing import Protocol

from dfc.errors import DfcError, ServerTrouble


class EngineLost(ServerTrouble):
    """The worker died, or the engine could not be reached. The state of the task is unknown: run it again."""

    status = 503
    code = "engine_lost"


class TaskFailed(DfcError):
    """The task ran and failed. `code` is the error's (`input_changed`, `no_space`, …); `retryable` says whether a retry may
    succeed, for example because a target was restarted."""

    def __init__(self, code: str, message: str, retryable: bool) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]
        self.retryable = retryable


class Engine(Protocol):
    """Runs tasks. Belongs to one event loop. Processes are started only for the first task."""

    @property
    def slots(self) -> int:
        """How many tasks can run at once, as far as is known so far; at least 1."""

    async def start(self) -> None:
        """Check the settings, without starting anything. ConfigError if they cannot work."""

    async def run(self, task: bytes, near: str | None) -> bytes:
        """Run one task (msgpack of `Task`), beside the target `near` if it has a free worker, else anywhere.

        Returns msgpack of `TaskResult`. Raises EngineLost, TaskFailed. Cancelling the coroutine withdraws the task; one that is
        already running ends at its next call of the store.
        """

    async def close(self) -> None:
        """End all processes. Tasks that are running raise EngineLost."""
