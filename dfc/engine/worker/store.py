"""The `Store` of a worker (`dfc.jobs.store`), through which a task reads and writes: local files if possible, else HTTP."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from dfc.engine.base import WorkerSettings
from dfc.engine.worker.nodes import Nodes, site_path, staged_path
from dfc.engine.worker.reading import BlobSource, OpenFile, OpenShards, Origin, RemoteSource, Throttle
from dfc.engine.worker.writing import Deposits, StagedOutput
from dfc.errors import Conflict, DfcError, JobCancelled, NotAShard, NotFound, Unavailable
from dfc.jobs.store import Source
from dfc.jobs.tasks import InputShard, Task
from dfc.names import object_path
from dfc.tar.index.reader import ShardIndex

CHECK_S: Final = 2.0  # how often a task checks whether its job was cancelled


class Workshop:
    """What a worker keeps between tasks: connections, the map, open shards and indexes."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.nodes = Nodes(settings)
        self.shards = OpenShards(self.nodes)
        self.deposits = Deposits(self.nodes)
        self.throttle = Throttle(settings.io_bytes_per_s)
        self._job = ""

    @contextmanager
    def store(self, task: Task) -> Iterator[JobStore]:
        """Provide the store of one task; outputs that it leaves open are aborted."""
        if task.job != self._job:
            self.shards.close()
            self._job = task.job
        store = JobStore(self, task)
        self.nodes.check = store.check
        try:
            self.nodes.know(task.map_version)
            yield store
        except Unavailable:
            self.nodes.refresh()  # for the next try: objects may be elsewhere by now
            raise
        finally:
            store.close()

    def close(self) -> None:
        self.shards.close()
        self.nodes.close()


class JobStore:
    """Implements `dfc.jobs.store.Store` for one task."""

    def __init__(self, workshop: Workshop, task: Task) -> None:
        self.memory_bytes = workshop.settings.memory_bytes
        self._nodes = workshop.nodes
        self._shards = workshop.shards
        self._deposits = workshop.deposits
        self._throttle = workshop.throttle
        self._task = task
        self._outputs: set[StagedOutput] = set()
        self._checked_s = float("-inf")

    # --- reading

    def open(self, shard: InputShard) -> Source:
        self.check()
        file = self._shards.file(shard)
        if file is not None:
            return _Holding(file, shard.label, self._throttle)
        path = f"/v1/objects{object_path(shard.bucket, shard.name)}"
        bucket, name, sources = shard.bucket, shard.name, self._nodes.sources
        origin = Origin(shard.label, lambda last: sources(bucket, name, last), path, shard.checksum, (bucket, name))
        return RemoteSource(self._nodes, origin, shard.size, self._throttle)

    def index(self, shard: InputShard) -> ShardIndex:
        self.check()
        if not shard.is_indexed:
            raise NotAShard(f"{shard.label} has no tar index")
        return self._shards.index(shard)

    def open_temporary(self, name: str) -> Source:
        self.check()
        file, size = self._shards.temporary(self._task, name)
        if file is not None:
            return _Holding(file, name, self._throttle)
        path = staged_path(self._task.job, self._task.output_bucket, name, True)
        origin = Origin(name, lambda _last: [self._nodes.output_owner(self._task, name)], path, "")
        return RemoteSource(self._nodes, origin, size, self._throttle)

    # --- writing

    def create(self, name: str, size: int | None = None) -> StagedOutput:
        return self._create(name, size, temporary=False)

    def create_temporary(self, name: str, size: int | None = None) -> StagedOutput:
        return self._create(name, size, temporary=True)

    def _create(self, name: str, size: int | None, *, temporary: bool) -> StagedOutput:
        self.check()
        output = StagedOutput(
            self._nodes,
            self._deposits,
            name,
            lambda: self._nodes.output_owner(self._task, name),
            staged_path(self._task.job, self._task.output_bucket, name, temporary),
            site_path(self._task.output_bucket, name, temporary),
            size,
            self._throttle,
            self.check,
            self._outputs.discard,
        )
        self._outputs.add(output)
        return output

    def scratch(self) -> AbstractContextManager[str]:
        return tempfile.TemporaryDirectory(prefix="task-")

    def check(self) -> None:
        now = time.monotonic()
        if now - self._checked_s < CHECK_S:
            return
        self._checked_s = now
        try:
            self._nodes.ask_proxy(f"/v1/node/jobs/{self._task.job}")
        except (NotFound, Conflict):
            raise JobCancelled(f"the job {self._task.job} was cancelled or has ended") from None
        except DfcError:
            pass  # the proxy is unreachable for the moment: go on

    def close(self) -> None:
        """Abort outputs that were not committed."""
        for output in list(self._outputs):
            output.abort()


class _Holding(BlobSource):
    """A source that keeps its file open even if the cache drops it."""

    def __init__(self, file: OpenFile, label: str, throttle: Throttle) -> None:
        super().__init__(file.descriptor, file.size, label, throttle)
        self._file = file
