"""A handler that is cancelled at each of its awaits, one after the other: while it waits, and just as what it waits for has
come. Whatever was under way, the object is the old or the new one, nothing is left over, and the next request is served.

Handlers are cancelled when a node stops; request timeouts and quorums will cancel many more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from harness import open_files
from inprocess import InProcess, until
from job_shards import tar_of

from dfc.errors import ObjectNotFound
from dfc.http.budget import KINDS
from dfc.limits import DECOMPRESSIONS_MAX
from dfc.proxy.jobs.context import Staged
from dfc.servers.target import TargetNode

AWAITS_MAX = 400  # more than any request here has; reached only when something waits in circles
SETTLED_S = 20  # what is left over after so long stays
JOB = "j" + "0" * 25
OLD, NEW = (tar_of([(f"{number:06d}.x", bytes([number]) * 5000) for number in range(count)]) for count in (40, 60))


class Cancelled:
    """Runs a coroutine as part of the current task, and cancels the task at the await number `at`."""

    def __init__(self, work: Any, at: int, arriving: bool) -> None:
        self.work, self.at, self.arriving = work, at, arriving
        self.awaits = 0
        self.struck = False

    def _strike(self, task: asyncio.Task[Any]) -> None:
        self.struck = True
        task.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        raised: BaseException | None = None
        while True:
            try:
                waited_for = self.work.send(None) if raised is None else self.work.throw(raised)
            except StopIteration as end:
                return end.value
            raised = None
            self.awaits += 1
            if self.awaits == self.at:
                if self.arriving and waited_for is not None:
                    # Before the task's own callback: it is cancelled when its result is there and it has not run yet.
                    waited_for.add_done_callback(lambda _: self._strike(task))
                else:
                    self._strike(task)
            try:
                yield waited_for
            except BaseException as error:
                raised = error


class Answered:
    """An answer whose sending goes on counting."""

    def __init__(self, answer: Any, run: Callable[[Any], Awaitable[Any]]) -> None:
        self._answer, self._run = answer, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answer, name)

    async def prepare(self, exchange: Any) -> None:
        await self._run(self._answer.prepare(exchange))


class Striker:
    """Stands between a server and its handlers."""

    def __init__(self, server: Any) -> None:
        self._handler = server.request_handler
        server.request_handler = self
        self.method = ""
        self.at = 0
        self.arriving = False
        self.struck = False
        self.active = 0

    def arm(self, method: str, at: int, arriving: bool) -> None:
        self.method, self.at, self.arriving, self.struck = method, at, arriving, False

    async def __call__(self, exchange: Any) -> Any:
        strike = exchange.method == self.method
        if strike:
            self.method = ""
        done = 0

        async def run(work: Any) -> Any:
            nonlocal done
            cancelled = Cancelled(work, self.at - done if strike else -1, self.arriving)
            self.active += 1
            try:
                return await cancelled
            finally:
                self.active -= 1
                done += cancelled.awaits
                self.struck = self.struck or cancelled.struck

        return Answered(await run(self._handler(exchange)), run)


@dataclass
class Stage:
    """One target with one disk behind one proxy, and a look at everything that could be left over."""

    cluster: InProcess
    striker: Striker

    @property
    def target(self) -> TargetNode:
        return self.cluster.targets[0]

    @property
    def url(self) -> str:
        return self.target._url

    @property
    def disk(self) -> Any:
        return next(iter(self.target.local.disks.values()))

    def bucket_id(self) -> str:
        found = self.target.local.map.bucket("b")
        assert found is not None
        return found.id

    def content(self, name: str) -> bytes | None:
        try:
            row = self.disk.lookup(self.bucket_id(), name)
        except ObjectNotFound:
            return None
        file = self.disk.open_blob(row)
        try:
            return os.pread(file, row.size, 0)
        finally:
            os.close(file)

    async def is_quiet(self) -> bool:
        threads = self.target.local.threads(self.disk)
        return not threads._reads._under_way + threads._writes._under_way + self.striker.active

    def leftovers(self) -> dict[str, Any]:
        disk, target = self.disk, self.target
        disk.parts.discarder.wait()
        objects = Path(disk.path) / "objects"
        return {
            # Not the catalog's connections, of which each thread has one, and not the indexes that are kept open.
            "descriptors": sorted(
                link
                for link in open_files(os.getpid())
                if "pipe" in link or (link.startswith(f"{disk.path}/objects") and not link.endswith(".idx"))
            ),
            "temporary": os.listdir(f"{disk.path}/temporary"),
            "blobs without a row": sorted(
                str(file) for file in objects.rglob("*") if file.is_file() and not self._is_known(str(file))
            ),
            "space claimed": disk.parts.space._claimed,
            "errors": disk.stats.io_errors,
            "quarantined": disk.quarantined(),
            "state": disk.state,
            "slots taken": 2 * DECOMPRESSIONS_MAX - target._members.slots._free._value - target._uploads.slots._free._value,
            "places": {kind.name: target.server.bulk.budgets[kind].running for kind in KINDS},
        }

    async def nothing_is_left_since(self, before: dict[str, Any], when: str) -> None:
        """Soon, that is: what the proxy gave up may only just have reached the target, which has to find that nobody waits."""
        await self._until_batches_are_looked_for()
        with contextlib.suppress(TimeoutError):
            await until(lambda: self._are_leftovers(before), SETTLED_S)
        assert self.leftovers() == before, when

    async def _until_batches_are_looked_for(self) -> None:
        """What looks for the items of a batch opens files, and closes them when nobody waits for it any more: all its threads
        have come to their ends when they meet here."""
        pool = self.target.local.batches
        meeting = threading.Barrier(pool._max_workers)
        run = asyncio.get_running_loop().run_in_executor
        await asyncio.gather(*(run(pool, meeting.wait, SETTLED_S) for _ in range(pool._max_workers)))

    async def _are_leftovers(self, before: dict[str, Any]) -> bool:
        return await self.is_quiet() and self.leftovers() == before

    def _is_known(self, path: str) -> bool:
        rows = self.disk.list(self.bucket_id(), limit=100)
        staged = [entry.row for entry in self._staged()]
        return any(path.startswith(self.disk.parts.path(row)) for row in (*rows, *staged))

    def _staged(self) -> list[Any]:
        from dfc.storage.catalog.changes import staged_rows

        return list(staged_rows(self.disk.parts.catalog, JOB))


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    # No proxy knows the job of these tests: its sweep, half a second after the start, would end that between two requests.
    monkeypatch.setattr(Staged, "keep_swept", never)
    cluster = await InProcess(tmp_path).start(1)
    assert await cluster.ask("PUT", "/b/old.tar", OLD) is not None
    made = Stage(cluster, Striker(cluster.targets[0].server))
    yield made
    await cluster.stop()


async def send(url: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    """Status and body on a connection of its own; 0 when it was cut."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session,
            session.request(method, url + path, data=body, headers=headers) as answer,
        ):
            return answer.status, await answer.read()
    except aiohttp.ClientError:
        return 0, b""


async def in_pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 100_000):
        yield data[start : start + 100_000]
        await asyncio.sleep(0.001)


def awaits(striker: Striker) -> Iterator[int]:
    """The numbers of the awaits of a request, until it was not struck in one; it is in the first."""
    for at in range(1, AWAITS_MAX):
        yield at
        if not striker.struck:
            assert at > 1
            return
    pytest.fail(f"it still awaits something after {AWAITS_MAX} cancellations")


BATCH = msgspec.json.encode({"items": [{"bucket": "b", "object": "old.tar", "number": number} for number in range(20)]})
# method, path, body, header lines; what may be there afterwards
CASES: dict[str, tuple[str, str, Callable[[], Any], dict[str, str]]] = {
    "small upload": ("PUT", "/b/x", lambda: b"new", {}),
    "large upload": ("PUT", "/b/x.tar", lambda: NEW, {}),
    "chunked upload": ("PUT", "/b/x.tar", lambda: in_pieces(NEW), {}),
    "conditional upload": ("PUT", "/b/x.tar", lambda: NEW, {"If-Match": "*"}),
    "large upload of xz": ("PUT", "/b/x.tar.xz", lambda: NEW, {}),
    "staged output": ("PUT", f"/v1/node/staged/{JOB}/b/out.tar", lambda: NEW, {}),
    "delete": ("DELETE", "/b/x.tar", lambda: None, {}),
    "large download": ("GET", "/b/old.tar", lambda: None, {}),
    "sample": ("GET", "/b/old.tar?sample=000007", lambda: None, {}),
    "listing of samples": ("GET", "/b/old.tar?list=samples", lambda: None, {}),
    "batch": ("POST", "/v1/batch", lambda: BATCH, {}),
    "own part of a batch": ("POST", "/v1/node/batch", lambda: BATCH, {}),
    "publishing": ("POST", f"/v1/node/staged/{JOB}/publish", lambda: None, {}),
    "handed to the proxy": ("GET", "/v1/buckets", lambda: None, {}),
}


@pytest.mark.parametrize("arriving", [False, True], ids=["waiting", "arriving"])
@pytest.mark.parametrize("case", CASES)
async def test_a_target_keeps_its_promises_wherever_it_is_cancelled(stage: Stage, case: str, arriving: bool) -> None:
    method, path, body, headers = CASES[case]
    name = path.split("?")[0].removeprefix("/b/")
    for at in awaits(stage.striker):
        if method in ("PUT", "DELETE") and path.startswith("/b/"):
            assert (await send(stage.url, "PUT", path, OLD))[0] in (200, 201)
        if case == "publishing":
            await send(stage.url, "PUT", f"/v1/node/staged/{JOB}/b/out.tar", NEW)
        await until(stage.is_quiet)
        before = stage.leftovers()
        stage.striker.arm(method, at, arriving)
        status, _ = await send(stage.url, method, path, body(), **headers)
        await stage.nothing_is_left_since(before, f"cancelled at await {at}")
        assert stage.content("old.tar") == OLD
        if method in ("PUT", "DELETE") and path.startswith("/b/"):
            new = None if method == "DELETE" else b"new" if case == "small upload" else NEW
            found = stage.content(name)
            assert found in (OLD, new), f"cancelled at await {at}"
            assert not status or found == new
    assert status in (200, 201, 204), "undisturbed, it was not served"


@pytest.mark.parametrize("arriving", [False, True], ids=["waiting", "arriving"])
@pytest.mark.parametrize(
    "case", ["small upload", "large upload", "chunked upload", "delete", "large download", "batch", "delete the bucket"]
)
async def test_a_proxy_keeps_its_promises_wherever_it_is_cancelled(stage: Stage, case: str, arriving: bool) -> None:
    """The relay, and the deletion of a bucket."""
    cluster = stage.cluster
    assert cluster.proxy is not None
    striker = Striker(cluster.proxy.server)
    method, path, body, headers = CASES.get(case, ("DELETE", "/v1/buckets/gone", lambda: None, {}))
    for at in awaits(striker):
        if method in ("PUT", "DELETE") and path.startswith("/b/"):
            assert (await send(cluster.url, "PUT", path, OLD))[0] in (200, 201)
        if case == "delete the bucket":
            await until(lambda: _is_made(cluster, "gone"))
        await until(stage.is_quiet)
        before = stage.leftovers()
        striker.arm(method, at, arriving)
        status, _ = await send(cluster.url, method, path, body(), **headers)
        await stage.nothing_is_left_since(before, f"cancelled at await {at}")
        assert stage.content("old.tar") == OLD
        if case == "delete the bucket" and not status:
            # Writable at once, or gone: never in between for good.
            await until(lambda: _is_made(cluster, "gone"))
            assert (await send(cluster.url, "PUT", "/gone/x", b"1"))[0] == 201
            assert (await send(cluster.url, "DELETE", "/gone/x"))[0] == 204
    assert status in (200, 201, 204), "undisturbed, it was not served"


async def _is_made(cluster: InProcess, bucket: str) -> bool:
    return (await send(cluster.url, "PUT", f"/v1/buckets/{bucket}"))[0] in (200, 201)
