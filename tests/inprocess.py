"""A whole cluster in one event loop, and an engine whose tasks do what a test tells them: for what real processes cannot be
made to do at the right moment."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import msgspec
import xxhash
from harness import owner_of
from job_shards import tar_of
from msgspec import Struct
from ports import free_port

from dfc.config import Settings
from dfc.jobs import operations
from dfc.jobs.spec import CommonOptions
from dfc.jobs.tasks import JobInput, OutputRecord, Stage, Task, TaskDraft, TaskResult
from dfc.placement.map import ClusterMap
from dfc.servers.proxy import ProxyNode
from dfc.servers.target import TargetNode


class ProbeOptions(CommonOptions, frozen=True, kw_only=True):
    """`tasks` of one stage, each writing an output of `size` bytes; `second`: tasks of another that writes nothing,
    but says that its temporary objects take `temporary` bytes."""

    tasks: int = 3
    size: int = 10
    second: int = 0
    temporary: int = 0
    mistake: str = ""


class _Payload(Struct, frozen=True):
    name: str
    size: int


def _plan(job: JobInput) -> list[Stage]:
    options: ProbeOptions = job.options
    if options.mistake == "plan":
        raise RuntimeError("a mistake in a plan")

    def first(results: Any) -> Any:
        for number in range(options.tasks):
            if options.mistake == "tasks" and number == 2:
                raise RuntimeError("a mistake in a stage")
            same = options.mistake == "same name"
            payload = msgspec.msgpack.encode(_Payload(job.pattern.name(0 if same else number), options.size))
            yield TaskDraft(payload, f"label-{number}", job.node_of(job.pattern.name(number)))

    def second(results: Any) -> Any:
        assert [result.samples for result in results["first"]] == [1] * options.tasks
        for _ in range(options.second):
            yield TaskDraft(msgspec.msgpack.encode(_Payload("", 0)), "second")

    stages = [Stage("first", first, options.tasks + (options.mistake == "count"), outputs=options.tasks)]
    return [*stages, Stage("second", second, temporary_bytes=options.temporary)] if options.second else stages


def install_probe(monkeypatch: Any) -> None:
    """Make `probe` an operation of this process."""
    module: Any = ModuleType("dfc.jobs.operations.probe")
    module.Options, module.plan, module.check, module.FUNCTIONS = ProbeOptions, _plan, lambda options, pattern: None, {}
    monkeypatch.setitem(sys.modules, "dfc.jobs.operations.probe", module)
    monkeypatch.setattr(operations, "OPERATIONS", (*operations.OPERATIONS, "probe"))


class ProbeEngine:
    """Runs tasks of `probe` in the event loop. `before(task)` is awaited first and may raise what engines raise."""

    def __init__(self, proxy_url: str, slots: int = 2) -> None:
        self.proxy_url = proxy_url
        self.slots = slots
        self.ran: Counter[str] = Counter()
        self.running = self.most_running = 0
        self.before: Callable[[Task], Any] | None = None
        self.warn: Callable[[Task], tuple[str, ...]] = lambda task: ()

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def run(self, data: bytes, near: str | None) -> bytes:
        task = msgspec.msgpack.decode(data, type=Task)
        self.ran[f"{task.function}/{task.number}"] += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self.before is not None:
                await self.before(task)
            return msgspec.msgpack.encode(await self._work(task))
        finally:
            self.running -= 1

    async def _work(self, task: Task) -> TaskResult:
        payload = task.decode(_Payload)
        if not payload.name:
            return TaskResult(samples=0)
        content = content_of(payload.name, payload.size)
        await stage(self.proxy_url, task.job, task.output_bucket, payload.name, content)
        checksum = xxhash.xxh3_128(content).hexdigest()
        record = OutputRecord(payload.name, len(content), checksum, len(content), checksum, 1)
        return TaskResult((record,), 1, 0, len(content), self.warn(task))


class Gate:
    """Holds tasks back from a number on until it is opened."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.opened = asyncio.Event()
        self.reached = asyncio.Event()

    async def __call__(self, task: Task) -> None:
        if task.number >= self.number:
            self.reached.set()
            await self.opened.wait()


class Failing:
    """A call of the journal that fails so many times, once it has begun to."""

    def __init__(self, monkeypatch: Any, owner: Any, name: str, error: Exception, times: int, *, begun: bool = True) -> None:
        self.real, self.error, self.times = getattr(owner, name), error, times
        self.failed = 0
        self.begun = begun
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *arguments: Any) -> Any:
        if self.begun and self.failed < self.times:
            self.failed += 1
            raise self.error
        return self.real(*arguments)


def tar_of_names(*names: str) -> bytes:
    """An archive of empty members."""
    return tar_of([(name, b"") for name in names])


def content_of(name: str, size: int) -> bytes:
    return (name.encode() * (size // len(name) + 1))[:size]


async def stage(proxy_url: str, job: str, bucket: str, name: str, content: bytes) -> None:
    """Stage an object on its owner, as a worker would."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{proxy_url}/v1/cluster") as answer:
            owner = owner_of(ClusterMap.decode(await answer.read()), bucket, name)
        async with session.put(f"{owner.node.url}/v1/node/staged/{job}/{bucket}/{name}", data=content) as answer:
            assert answer.status in (200, 201), await answer.text()


async def until(condition: Callable[[], Any], timeout_s: float = 60) -> None:
    """Ask until the answer is true, or what it is when it is awaited."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = condition()
            if await found if isawaitable(found) else found:
                return
            await asyncio.sleep(0.01)


class InProcess:
    """Targets that live as long as the test, and a proxy that can be stopped and started again. All end with a `with` block."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.settings = settings
        self.targets: list[TargetNode] = []
        self.proxy: ProxyNode | None = None
        self.engine: ProbeEngine
        self.session = aiohttp.ClientSession()
        self._port = free_port()  # kept while the proxy is stopped

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self, targets: int = 2) -> InProcess:
        await self.start_proxy(expected_targets=targets)
        for number in range(targets):
            directory = str(self.directory / f"target-{number}")
            settings = Settings(
                dir=directory,
                disks=(f"{directory}/disk",),
                port=0,
                proxy_url=self.url,
                access_log=False,
                heartbeat_s=0.3,
                token=self.settings.get("token", ""),
            )
            self.targets.append(TargetNode(settings))
            await self.targets[-1].start()

        await until(lambda: self.proxy is not None and self.proxy.cluster.is_ready())
        return self

    async def __aenter__(self) -> InProcess:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start_proxy(self, **more: Any) -> None:
        self.settings.update(more)
        settings = Settings(
            dir=str(self.directory / "proxy"),
            port=self._port,
            access_log=False,
            drain_timeout_s=1,
            down_after_s=60,
            **self.settings,
        )
        self.proxy = ProxyNode(settings)
        self.proxy.jobs._engine._make = lambda: self.engine
        self.proxy.server.bind()
        if not hasattr(self, "engine"):
            self.engine = ProbeEngine(self.url)
        self.proxy.server.bind = lambda: self._port  # type: ignore[method-assign]
        await self.proxy.start()

    async def stop_proxy(self) -> None:
        assert self.proxy is not None
        await self.proxy.stop()
        self.proxy = None

    async def restart_proxy(self) -> None:
        await self.stop_proxy()
        await self.start_proxy()

    async def stop(self) -> None:
        await self.session.close()
        if self.proxy is not None:
            await self.stop_proxy()
        for target in self.targets:
            await target.stop()

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON (or text)."""
        data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        async with self.session.request(method, self.url + path, data=data, headers=headers) as answer:
            content = await answer.read()
            is_json = answer.headers.get("Content-Type") == "application/json"
            return answer.status, msgspec.json.decode(content) if is_json else content.decode()

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and code of an error."""
        status, answer = await self.ask(method, path, body)
        return status, answer["error"]["code"]

    async def submit(self, pattern: str = "out-%04d", *, options: Any = None, bucket: str = "out", **more: Any) -> Any:
        """The job; the input is what the test has uploaded to `in`."""
        spec = {
            "operation": "probe", "input": {"bucket": "in", "shards": "**"}, "output": {"bucket": bucket, "pattern": pattern},
            "options": options or {}, **more,
        }  # fmt: skip
        status, job = await self.ask("POST", "/v1/jobs", spec)
        return job if status in (200, 202) else (status, job["error"]["code"], job["error"]["message"])

    async def submit_held(self, number: int = 0, pattern: str = "out-%04d", **spec: Any) -> tuple[Gate, Any]:
        """A job whose tasks wait from this number on, when the first of them does."""
        gate = self.engine.before = Gate(number)
        job = await self.submit(pattern, **spec)
        await gate.reached.wait()
        return gate, job

    async def until_done(self, job_id: str, tasks: int) -> None:
        """So many tasks of the job."""

        async def is_done() -> bool:
            return (await self.ask("GET", f"/v1/jobs/{job_id}"))[1]["progress"]["tasks"]["done"] >= tasks

        await until(is_done)

    async def until(self, job_id: str, *states: str, timeout_s: float = 60) -> Any:
        """The job when it is in one of the states; any that is final unless named."""
        async with asyncio.timeout(timeout_s):
            while True:
                _, job = await self.ask("GET", f"/v1/jobs/{job_id}")
                if job["state"] in (states or ("succeeded", "failed", "cancelled")):
                    return job
                await asyncio.sleep(0.01)

    async def names(self, bucket: str = "out", prefix: str = "") -> list[str]:
        status, text = await self.ask("GET", f"/{bucket}/?prefix={prefix}")
        return text.split() if status == 200 else []

    async def staged(self) -> dict[str, Any]:
        """What is staged on all targets, by job."""
        found: dict[str, Any] = {}
        for target in self.targets:
            async with self.session.get(f"{target._url}/v1/node/staged") as answer:
                for job, total in (await answer.json()).items():
                    found[job] = found.get(job, 0) + total["objects"]
        return found

    async def until_nothing_is_staged(self, timeout_s: float = 60) -> None:
        async def is_nothing() -> bool:
            return not await self.staged()

        await until(is_nothing, timeout_s)
