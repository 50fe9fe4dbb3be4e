"""Manage the staged objects of jobs on all targets: write, publish and discard them, and sweep those of no known job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from dfc.errors import CopiesMissing, DfcError, Unavailable
from dfc.http.calls.problems import RemoteError
from dfc.placement.map import NodeEntry
from dfc.proxy.cluster import Cluster

_log: Final = logging.getLogger("dfc.proxy.jobs")
RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 10.0
BEGIN_S: Final = 20.0  # for all targets to make outputs visible; what is not in time is asked for again
DOWN_LOOK_S: Final = 1.0  # between two looks whether a target that does not answer is down
SWEEP_S: Final = 3600.0
SWEEP_RETRY_FIRST_S: Final = 0.5  # while a target is down: a starting cluster is soon complete
SWEEP_RETRY_MAX_S: Final = 10.0


class StagedObject(msgspec.Struct, frozen=True, gc=False):
    """A staged object, as a target describes it."""

    object: str
    size: int
    checksum: str
    version: str = ""  # a target of the version before does not say it


class _Prepared(msgspec.Struct, frozen=True):
    objects: list[StagedObject]


class _NamesTold(msgspec.Struct, frozen=True):
    lacking: list[str]
    unknown: list[str]


class Staged:
    """Calls to the staging routes of the targets."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def put(self, job_id: str, bucket: str, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Write an output of the job from the proxy itself."""
        node = self._cluster.primary(self._cluster.bucket(bucket), name)
        url = f"{node.url}/v1/node/staged/{job_id}/{bucket}/{quote(name)}"
        await self._cluster.control.upload(url, pieces)

    async def prepare(self, job_id: str, node: NodeEntry) -> list[StagedObject]:
        """Return what a target is going to publish, made durable and verified, and copied to other disks, however long that
        takes. Other errors of the target are raised unchanged."""
        while True:
            try:
                url = f"{node.url}/v1/node/staged/{job_id}/prepare"
                return (await self._cluster.control.call("POST", url, _Prepared, long=True)).objects
            except RemoteError as error:
                if error.code != CopiesMissing.code:
                    raise
                _log.info("job %s: target %s: %s", job_id, node.id, error.message)

    async def publish(self, job_id: str, bucket: str, is_lost: Callable[[], bool]) -> bool:
        """Publish the outputs, however long a target is down; False when `is_lost` says that their bucket is gone.

        If they have copies, nobody waits for a target that is down: others have what it had staged, as `lacking` tells."""
        found, path = self._cluster.map.bucket(bucket), f"/v1/node/staged/{job_id}/publish"
        has_copies = found is not None and found.has_several
        if has_copies:
            # First everywhere what was staged, original or copy: else it would be sent to disks that are about to have it.
            nodes = [node for node in self._cluster.map.holders() if node.state == "up"]
            await asyncio.gather(*(self._begin(job_id, node, f"{path}?begin=1") for node in nodes))
        return await self._everywhere("POST", path, is_lost, without_down=has_copies)

    async def _begin(self, job_id: str, node: NodeEntry, path: str) -> None:
        try:
            async with asyncio.timeout(BEGIN_S):
                await self._cluster.control.call("POST", node.url + path, dict, long=True)
        except (DfcError, TimeoutError) as error:
            _log.info("job %s: target %s does not publish yet: %s", job_id, node.id, error)

    def has_down(self) -> bool:
        """Whether a target is down that may have outputs."""
        return any(node.state != "up" for node in self._cluster.map.holders())

    async def lacking(self, job_id: str, bucket: str, names: Sequence[str], version: str) -> list[str]:
        """Return those of the names that have neither this version nor a newer one, on all disks that must have it.

        Waits, for as long as it takes, until the targets that decide about them can say so. BucketNotFound."""
        found: list[str] = []
        wait_s, say = RETRY_FIRST_S, _log.warning
        while True:
            entry, unknown = self._cluster.bucket(bucket), list[str]()
            by_url: dict[str, list[str]] = {}
            for name in names:
                try:
                    by_url.setdefault(self._cluster.primary(entry, name).url, []).append(name)
                except Unavailable:
                    unknown.append(name)
            asked = (self._ask_lacking(job_id, url, bucket, some, version) for url, some in by_url.items())
            for told in await asyncio.gather(*asked):
                found += told.lacking
                unknown += told.unknown
            if not unknown:
                return found
            say("job %s: it is not known yet whether %d outputs are published, such as %r", job_id, len(unknown), unknown[0])
            names, say = unknown, _log.debug
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)

    async def _ask_lacking(self, job_id: str, url: str, bucket: str, names: list[str], version: str) -> _NamesTold:
        """Ask one target; one that does not answer, or decides about them no more, does not know."""
        body = {"bucket": bucket, "objects": names, "version": version}
        try:
            return await self._cluster.control.call("POST", f"{url}/v1/node/staged/{job_id}/lacking", _NamesTold, body=body)
        except DfcError as error:
            _log.debug("asking %s for outputs of job %s: %s", url, job_id, error.message)
            return _NamesTold([], names)

    async def discard(self, job_id: str) -> None:
        """Remove everything staged for the job, however long a target is down."""
        await self._everywhere("DELETE", f"/v1/node/staged/{job_id}", lambda: False)

    async def _everywhere(self, method: str, path: str, is_lost: Callable[[], bool], *, without_down: bool = False) -> bool:
        """Call every target of the map until it acknowledges; a target that joins later has nothing of the job."""
        calls = (
            self._until_done(node.id, method, path, is_lost, without_down=without_down) for node in self._cluster.map.holders()
        )
        return all(await asyncio.gather(*calls))

    async def _until_done(
        self, node_id: str, method: str, path: str, is_lost: Callable[[], bool], *, without_down: bool
    ) -> bool:
        wait_s, say = RETRY_FIRST_S, _log.warning
        while True:
            node = self._cluster.map.node(node_id)
            if node is None:
                return True  # it has left the cluster; what only it held is found to be lacking
            if without_down and node.state == "down":
                return True  # likewise
            try:
                call = self._cluster.control.call(method, f"{node.url}{path}", dict, long=True)
                await (self._unless_down(node_id, call) if without_down else call)
                return True
            except Exception as error:  # whatever it is, the job goes only forward from here
                if not isinstance(error, DfcError):
                    _log.exception("%s %s at %s failed; trying again", method, path, node_id)
                    error = DfcError(str(error))
                if isinstance(error, RemoteError) and error.status < 500 and is_lost():
                    return False
                say("%s %s at %s: %s; retrying until it succeeds", method, path, node_id, error.message)
                say = _log.debug  # a target may be away for days
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)

    async def _unless_down(self, node_id: str, call: Coroutine[Any, Any, object]) -> None:
        """Wait for an answer, or until the target is down: one that hangs answers never. Raises what the call raises."""
        task = asyncio.create_task(call)
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=DOWN_LOOK_S)
                node = self._cluster.map.node(node_id)
                if not task.done() and (node is None or node.state == "down"):
                    raise Unavailable(f"target {node_id} is down")
            task.result()
        finally:
            task.cancel()

    async def keep_swept(self, is_known: Callable[[str], bool]) -> None:
        """Sweep now and every hour; sooner if not every target could be asked."""
        retry_s = SWEEP_RETRY_FIRST_S
        while True:
            wait_s = SWEEP_S
            try:
                if self._cluster.is_ready() and await self.sweep(is_known):
                    _log.info("no target holds staged objects of jobs that are not running")
                    retry_s = SWEEP_RETRY_FIRST_S
                else:
                    wait_s, retry_s = retry_s, min(SWEEP_RETRY_MAX_S, retry_s * 2)
            except Exception:
                _log.exception("sweeping staged objects failed; trying again")
            await asyncio.sleep(wait_s)

    async def sweep(self, is_known: Callable[[str], bool]) -> bool:
        """Discard what belongs to no unfinished job; False when not every target could be asked."""

        async def ask(node: NodeEntry) -> None:
            found: dict[str, Any] = await self._cluster.control.call("GET", f"{node.url}/v1/node/staged", dict)
            for job_id in found:
                if not is_known(job_id):
                    _log.warning("target %s holds staged objects of job %s, which is not running: discarding", node.id, job_id)
                    await self._cluster.control.call("DELETE", f"{node.url}/v1/node/staged/{job_id}", dict, long=True)

        answers = await asyncio.gather(*(ask(node) for node in self._cluster.map.holders()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, DfcError):
                raise answer
        return not any(isinstance(answer, BaseException) for answer in answers)
