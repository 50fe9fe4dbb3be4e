"""Join a target to its cluster and keep it there: identity, registration, heartbeats."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final, NamedTuple

from dfc.config import Settings
from dfc.errors import DfcError, OperatorError, Unavailable
from dfc.filesystem import FileSystem
from dfc.http.calls.problems import RemoteError
from dfc.placement.map import ClusterMap, DiskEntry, Labels
from dfc.registry.registration import Registered, Registration
from dfc.target.disks import describe, describe_unopened
from dfc.target.identity import settle_identity
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
RETRY_S: Final = 0.25  # first retry delay at start, while the registry cannot be reached
RETRY_MAX_S: Final = 2.0
BEAT_ANSWER_S: Final = 2.0  # per address if there are several; a target that is silent for twice as long is down


class Joined(NamedTuple):
    """The registry's answer to the registration."""

    cluster_id: str
    node_number: int


class Membership:
    """Joins the cluster once, then sends heartbeats."""

    def __init__(self, local: Local, settings: Settings, filesystem: FileSystem) -> None:
        self._local = local
        self._settings = settings
        self._filesystem = filesystem
        self._url = self._advertised = ""

    async def join(self, url: str, advertised: str) -> Joined:
        """Determine which node this is, and register it with its URLs for nodes and for clients. Its disks are formatted by
        then, but not open yet. Raises OperatorError, and what `settle_identity` raises."""
        self._url, self._advertised = url, advertised
        settings, local = self._settings, self._local
        known = await self._cluster_map()
        directory = os.path.abspath(settings.dir or settings.disks[0])
        local.node_id = await local.call(settle_identity, directory, settings.disks, known, self._filesystem)
        entries = await local.call(describe_unopened, settings.disks)
        return Joined(known.cluster_id, await self._first_registration(known.cluster_id, entries))

    async def _cluster_map(self) -> ClusterMap:
        """Fetch the registry's map, retrying until it answers."""
        wait_s = RETRY_S
        while True:
            try:
                return await self._local.ask_registry("GET", "/v1/cluster", ClusterMap)
            except (Unavailable, RemoteError) as error:
                if not _may_be_asked_again(error):
                    raise OperatorError(
                        f"the registry at {self._local.proxies} refuses this target: {error.message}"
                    ) from error
                _log.info("waiting for the registry at %s: %s", self._local.proxies, error.message)
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_MAX_S, wait_s * 2)

    async def _first_registration(self, cluster_id: str, entries: tuple[DiskEntry, ...]) -> int:
        while True:
            try:
                return (await self._register(cluster_id, entries)).node_number
            except (Unavailable, RemoteError) as error:
                if not _may_be_asked_again(error):
                    raise OperatorError(f"the registry refuses this target: {error.message}") from error
                _log.info("the registry does not accept registrations yet: %s", error.message)
                await asyncio.sleep(RETRY_S)

    async def _register(self, cluster_id: str, entries: tuple[DiskEntry, ...]) -> Registered:
        said = Registration(
            node_id=self._local.node_id,
            role="target",
            url=self._url,
            advertise_url=self._advertised,
            cluster_id=cluster_id,
            map_version=self._local.map.version,
            disks=entries,
            labels=Labels(zone=self._settings.zone, host=self._settings.host_label),
        )
        answer = await self._local.ask_registry("POST", "/v1/nodes", Registered, said, answer_s=BEAT_ANSWER_S)
        if answer.map is not None:
            self._local.take_map(answer.map)
        return answer

    async def beat(self) -> None:
        """Send heartbeats forever; if the registry cannot be reached, keep serving and retry."""
        local, failing = self._local, False
        while True:
            await asyncio.sleep(self._settings.heartbeat_s)
            try:
                reports = await local.reports()
                await self._register(local.map.cluster_id, describe(reports, local.map, local.node_id))
                failing = False
            except (Unavailable, RemoteError) as error:
                if not failing:
                    _log.warning("cannot send heartbeats: %s", error.message)
                failing = True
            except Exception:
                _log.exception("sending a heartbeat failed; trying again")


def _may_be_asked_again(error: DfcError) -> bool:
    """Whether to retry: the registry cannot be reached, or is too busy now."""
    return error.status == 503
