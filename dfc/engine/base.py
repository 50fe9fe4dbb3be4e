"""What the jobs service knows of an engine: bytes of a task in, bytes of its result out, or one of two errors.

An engine forgets a task as soon as it has answered: retries, order and the journal are the service's.
"""

from __future__ import annotations

from typing import Protocol

from dfc.errors import DfcError, ServerTrouble


class EngineLost(ServerTrouble):
    """The worker died under the task, or the engine could not be reached: nothing is known about the task. Run it again."""

    status = 503
    code = "engine_lost"


class TaskFailed(DfcError):
    """The task has run and failed. `code` is that of the error (`input_changed`, `no_space`, …); `retryable` whether it may
    succeed when it is run again, as after a full connection table or a target that was restarted."""

    def __init__(self, code: str, message: str, retryable: bool) -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]
        self.retryable = retryable


class Engine(Protocol):
    """Belongs to one event loop. Cheap until the first task: processes are started by it."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time, as far as is known by now; at least 1."""

    async def start(self) -> None:
        """Check the settings; ConfigError when they cannot work. Starts nothing."""

    async def run(self, task: bytes, near: str | None) -> bytes:
        """Run one task (msgpack of `Task`), beside the target `near` if it has a free worker, else anywhere.

        Gives msgpack of `TaskResult`. Raises EngineLost, TaskFailed. When the coroutine is cancelled the task is taken back;
        one that runs already ends at its next call of the store.
        """

    async def close(self) -> None:
        """End all processes; tasks that run raise EngineLost."""
