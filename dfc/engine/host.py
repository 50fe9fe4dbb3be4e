"""`python -m dfc.engine.host`: the process with a Dask scheduler or client, and which worker it gives a task to."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from dfc.engine.environment import (
    TO_ENGINE,
    Begin,
    Cancel,
    Done,
    FromEngine,
    Listening,
    Lost,
    RunRequest,
    SchedulerAddress,
    WorkerSlots,
    end_group,
    frame,
    make_scratch,
    read_begin,
    read_frame,
    security,
    start_fork_server,
    take_pipes,
)

# --- Decides which worker gets which task, and which task to blame for a dead worker. A state machine without I/O.
#
# Dask could queue everything itself, but when a worker dies it fails all tasks queued there, so a task that kills its worker
# would use up the retries of others. Therefore a worker gets one task, and a second one to start as soon as the first ends; the
# rest is queued here. If a worker with two tasks dies, either may have killed it (the answer of the first may have been lost
# with the worker): both are suspects and run once more, each alone on its worker.

DEPTH: Final = 2  # the running task and the next one


@dataclass(slots=True)
class Waiting:
    """A queued task. `near` names the node whose workers should run it. `losses` counts workers that died while they had this
    task and another; a task with losses runs alone."""

    number: int
    task: bytes
    near: str | None
    losses: int = 0
    worker: str = ""  # address of the worker that has it


@dataclass(slots=True)
class _Worker:
    node: str
    tasks: list[int] = field(default_factory=list)
    alone: bool = False  # with a suspect


class Dispatcher:
    """Assigns tasks to workers. A worker is identified by its address, which changes when it is restarted."""

    def __init__(self) -> None:
        self._workers: dict[str, _Worker] = {}
        self._blamed: dict[str, int | None] = {}  # dead worker → its task, if it had only one
        self._queue: dict[int, Waiting] = {}
        self._given: dict[int, Waiting] = {}

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._given

    def set_workers(self, nodes: Mapping[str, str]) -> None:
        """Set the current workers: address → id of the node beside which it runs, or an empty string."""
        for address in self._workers.keys() - nodes.keys():
            self._bury(address)
        for address, node in nodes.items():
            if address not in self._blamed:
                self._workers.setdefault(address, _Worker(node))

    def add(self, waiting: Waiting) -> None:
        self._queue[waiting.number] = waiting

    def assign(self) -> list[Waiting]:
        """Return the tasks to submit to Dask now; `worker` is set to the address of the worker."""
        found: list[Waiting] = []
        nodes = {worker.node for worker in self._workers.values()}
        for depth in range(1, DEPTH + 1):
            free = [
                (address, worker)
                for address, worker in self._workers.items()
                if len(worker.tasks) < depth and not (worker.alone and worker.tasks)
            ]
            for strict in (True, False) if depth == 1 else (True,):
                for address, worker in free:
                    if len(worker.tasks) < depth and (waiting := self._choose(worker, nodes, strict)) is not None:
                        del self._queue[waiting.number]
                        waiting.worker = address
                        worker.tasks.append(waiting.number)
                        worker.alone = waiting.losses > 0
                        self._given[waiting.number] = waiting
                        found.append(waiting)
        return found

    def _choose(self, worker: _Worker, nodes: set[str], strict: bool) -> Waiting | None:
        """The first task that is near this worker, else one that can run anywhere, else, unless `strict`, any."""
        anywhere = None
        for waiting in self._queue.values():
            if waiting.losses and worker.tasks:
                continue
            if waiting.near == worker.node:
                return waiting
            if anywhere is None and (not strict or waiting.near is None or waiting.near not in nodes):
                anywhere = waiting
        return anywhere

    def finished(self, number: int) -> None:
        """Forget a task that was answered or withdrawn."""
        self._queue.pop(number, None)
        waiting = self._given.pop(number, None)
        if waiting is not None and (worker := self._workers.get(waiting.worker)) is not None:
            worker.tasks.remove(number)

    def lost(self, number: int) -> bool:
        """Handle the death of a task's worker. True: the task is to blame, report it as lost; False: it is queued again."""
        waiting = self._given.get(number)
        if waiting is None:
            return True
        self._bury(waiting.worker)
        blamed = self._blamed.get(waiting.worker) == number
        self.finished(number)
        waiting.losses += 1
        if blamed or waiting.losses > 1:
            return True
        self._queue = {number: waiting, **self._queue}
        return False

    def drain(self) -> Iterator[int]:
        """Forget all tasks and workers, because the scheduler is gone, and yield the numbers of the tasks."""
        numbers = [*self._given, *self._queue]
        self._given.clear()
        self._queue.clear()
        self._workers.clear()
        yield from numbers

    def _bury(self, address: str) -> None:
        worker = self._workers.pop(address, None)
        if worker is not None:
            self._blamed[address] = worker.tasks[0] if len(worker.tasks) == 1 else None


# --- `python -m dfc.engine.host`: the child process that runs a node's Dask scheduler or client. Started by `dfc.engine.link`.
#
# It reads tasks from standard input, submits them to Dask, and writes answers to standard output (`dfc.engine.environment`).
# When standard input is closed, because the node wants that or is dead, it ends with all its children.

_log: Final = logging.getLogger("dfc.engine")
CONNECT_S: Final = 60.0  # a scheduler or worker that is being restarted comes back within this time
CONNECT_TRY_S: Final = 5.0
LOOK_S: Final = 0.5  # how often to look for new and lost workers
LOOKS_FAILED_MAX: Final = 3
MISSED_LOOKS_MAX: Final = 12  # a task that no worker has had for this many looks is lost


class Host:
    """Passes tasks between the node and Dask, in one event loop."""

    def __init__(self, begin: Begin, scratch: str, output: int) -> None:
        self._begin = begin
        self._scratch = scratch
        self._output = output
        self._dispatcher = Dispatcher()
        self._client: Any = None
        self._scheduler: Any = None  # if it runs here, for workers elsewhere
        self._address = ""
        self._futures: dict[int, Any] = {}
        self._working: set[asyncio.Task[None]] = set()
        self._slots = 0
        self._missed: dict[int, int] = {}  # tasks that Dask has on no worker → for how many looks
        self._workers_missed_s = 0.0

    async def start(self) -> None:
        """Start workers, or connect to the scheduler. OSError if that fails for CONNECT_S."""
        if self._begin.scheduler is None:
            start_fork_server(self._scratch)  # it imports while this process does
        from distributed import Client

        if self._begin.scheduler is None:
            self._client = await Client(await self._local_cluster(), asynchronous=True, direct_to_workers=True)
        else:
            if self._begin.serves:
                await self._serve(self._begin.scheduler)
            await self._connect()
        await asyncio.wait_for(self._look(), CONNECT_S)

    async def _local_cluster(self) -> Any:
        from distributed import LocalCluster

        return await LocalCluster(
            n_workers=self._begin.workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            memory_limit=0,  # tasks limit themselves; Dask holds only small answers
            local_directory=self._scratch,
            silence_logs=logging.ERROR,
            asynchronous=True,
        )

    async def _serve(self, wanted: SchedulerAddress) -> None:
        """Run the scheduler for workers beside targets, and tell by what they reach it."""
        from distributed import Scheduler

        host = self._begin.host or wanted.host
        self._scheduler = await Scheduler(
            host=f"{wanted.scheme}://{f'[{host}]' if ':' in host else host}",
            port=wanted.port,
            security=security(wanted),
            dashboard=False,
            dashboard_address="127.0.0.1:0",
        )
        self._address = f"{wanted.address.rpartition(':')[0]}:{self._scheduler.port}"
        self._say(Listening(self._address))

    async def _connect(self) -> None:
        from distributed import Client

        assert self._begin.scheduler is not None
        address = self._address or self._begin.scheduler.address
        deadline = asyncio.get_running_loop().time() + CONNECT_S
        while True:
            try:
                self._client = await Client(
                    address,
                    asynchronous=True,
                    timeout=CONNECT_TRY_S,
                    security=security(self._begin.scheduler),
                    direct_to_workers=False,
                )
                return
            except (OSError, TimeoutError, ValueError) as error:  # ValueError: TLS over a connection that is already broken
                if asyncio.get_running_loop().time() > deadline:
                    raise OSError(f"cannot connect to the Dask scheduler at {address}: {error}") from None
            await asyncio.sleep(LOOK_S)

    async def run(self, reader: asyncio.StreamReader) -> None:
        """Run until the node closes the pipe. OSError if the scheduler is lost."""
        done, _ = await asyncio.wait(
            (asyncio.create_task(self._read(reader)), asyncio.create_task(self._live())), return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()

    async def _live(self) -> None:
        await self.start()
        await self._keep_looking()

    def lose_all(self, reason: str) -> None:
        for number in self._dispatcher.drain():
            self._say(Lost(number, reason))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (data := await read_frame(reader)) is not None:
            message = TO_ENGINE.decode(data)
            if isinstance(message, RunRequest):
                self._dispatcher.add(Waiting(message.number, message.task, message.near))
                self._assign()
            elif isinstance(message, Cancel):
                self._cancel(message.number)

    # --- tasks

    def _assign(self) -> None:
        for waiting in self._dispatcher.assign():
            task = asyncio.create_task(self._work(waiting))
            self._working.add(task)
            task.add_done_callback(self._working.discard)

    async def _work(self, waiting: Waiting) -> None:
        """Run one task on one worker, from its submission to its answer."""
        from distributed.scheduler import KilledWorker

        from dfc.engine.worker.run import run_task

        number = waiting.number
        future = answer = reason = None
        try:
            future = self._futures[number] = self._client.submit(
                run_task,
                waiting.task,
                self._begin.settings,
                key=f"task-{number}-{waiting.losses}",
                workers=[waiting.worker],
                allow_other_workers=True,
                pure=False,
            )
            answer = await future
        except KilledWorker:
            if self._futures.get(number) is future and not self._dispatcher.lost(number):
                self._assign()
                return
            reason = "the worker process died while it ran the task"
        except Exception as error:  # Dask's: the scheduler went away, or a worker has another version of DFC
            reason = f"{type(error).__name__}: {error}"
        finally:
            if future is not None:
                future.release()
        if self._futures.get(number) is not future:
            return  # cancelled meanwhile
        self._futures.pop(number, None)
        self._dispatcher.finished(number)
        self._assign()
        if reason is not None:
            self._say(Lost(number, reason))
        elif isinstance(answer, bytes):
            self._say(Done(number, answer))
        else:
            self._say(Lost(number, f"a worker sent an invalid answer of type {type(answer).__name__}"))

    def _cancel(self, number: int) -> None:
        self._dispatcher.finished(number)
        self._drop(number)
        self._assign()

    def _drop(self, number: int) -> None:
        """Cancel a run whose answer is no longer wanted."""
        future = self._futures.pop(number, None)
        if future is not None:
            cancelling = asyncio.ensure_future(future.cancel())
            self._working.add(cancelling)
            cancelling.add_done_callback(self._working.discard)

    # --- workers

    async def _keep_looking(self) -> None:
        failed = 0
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await asyncio.wait_for(self._look(), CONNECT_TRY_S)
                failed = 0
            except (OSError, TimeoutError) as error:
                failed += 1
                if failed >= LOOKS_FAILED_MAX or self._client.status != "running":
                    raise OSError(f"lost the Dask scheduler: {error}") from None

    async def _look(self) -> None:
        """Update the list of workers. OSError without a connection."""
        # Dask reconnects by itself, but not if the new connection breaks at once: then all tasks would hang forever, although
        # the scheduler is back and answers here.
        if self._client.status != "running":
            raise OSError("the connection was lost")
        found = (await self._client.scheduler.identity())["workers"]
        names = {address: str(worker["name"]) for address, worker in found.items() if worker["status"] == "running"}
        await self._look_after_tasks()
        self._dispatcher.set_workers({address: name.rpartition("/")[0] for address, name in names.items()})
        if len(names) != self._slots:
            self._slots = len(names)
            self._say(WorkerSlots(max(1, self._slots)))
        if names or self._dispatcher.is_idle:
            self._workers_missed_s = 0.0
        else:
            self._workers_missed_s += LOOK_S
            if self._workers_missed_s > CONNECT_S:
                raise OSError(f"no worker has connected for {CONNECT_S:.0f} s")
        self._assign()

    async def _look_after_tasks(self) -> None:
        """Find tasks that Dask has lost, which can happen if the worker dies while its result is being fetched. They are run
        again like others of a dead worker."""
        if not self._futures:
            return
        asked = dict(self._futures)
        at_work = {str(key) for keys in (await self._client.processing()).values() for key in keys}
        lost = {number: future for number, future in asked.items() if not future.done() and future.key not in at_work}
        self._missed = {number: self._missed.get(number, 0) + 1 for number in lost}
        for number, missed in self._missed.items():
            if missed >= MISSED_LOOKS_MAX and self._futures.get(number) is lost[number]:
                self._drop(number)
                if self._dispatcher.lost(number):
                    self._dispatcher.finished(number)
                    self._say(Lost(number, "the task was lost with its worker"))

    def _say(self, message: FromEngine) -> None:
        data = frame(message)
        try:
            while data:  # blocks while the pipe is full; the node reads continuously
                data = data[os.write(self._output, data) :]
        except OSError:
            end_group(self._scratch)


async def main(input_pipe: int, output: int) -> NoReturn:
    """Run the host, then end the process."""
    begin, reader = await read_begin(input_pipe)
    scratch = make_scratch(begin.directory)
    host = Host(begin, scratch, output)
    try:
        await host.run(reader)
    except Exception as error:
        _log.exception("the engine failed")
        host.lose_all(f"the engine ended: {error or type(error).__name__}")
    finally:
        end_group(scratch)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main(*take_pipes()))
