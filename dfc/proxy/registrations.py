"""Registrations and heartbeats of targets, and the leases that answer them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dfc.errors import NoRegistry
from dfc.placement.map import NodeEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.duties.steps import Steps
from dfc.registry.registration import Registered, Registration
from dfc.replication.lease import lease_s

CLOCK_AHEAD_S_MAX: Final = 3600.0  # a target whose clock is further ahead of the others gets no lease


class Registrations:
    """Takes what targets say of themselves."""

    def __init__(
        self,
        cluster: Cluster,
        steps: Steps,
        down_after_s: float,
        scheduler: Callable[[], str] = str,
        advertised: Callable[[], str] = str,
        check_epochs: Callable[[Registration], dict[str, int]] = lambda _said: {},
    ) -> None:
        """`scheduler` tells by what workers reach the scheduler of jobs that this proxy runs; empty: it runs none.
        `advertised`: where clients reach this proxy. `check_epochs` finds disks that were put back to an earlier state."""
        self._cluster = cluster
        self._steps = steps
        self._lease_s = lease_s(down_after_s)
        self._scheduler = scheduler
        self._advertised = advertised
        self._check_epochs = check_epochs

    async def register(self, said: Registration) -> Registered:
        """Process a registration or heartbeat. Conflict when the node is not of this cluster, or no node number is left;
        IdInUse when it is a copy of one that runs.

        Most heartbeats change only disk usage, and then nothing waits for the registry.
        """
        cluster, steps = self._cluster, self._steps
        if not steps.leads and cluster.why_registry_silent:
            # Another proxy may be the coordinator by now: the target asks that.
            raise NoRegistry("the registry does not answer, so this proxy cannot be the coordinator, nor find it")
        if said.map_version > cluster.map.version:
            await cluster.see_version(said.map_version)
        await cluster.check_id_is_free(said, self._lease_s)
        node = await cluster.hear(said)
        older = self._check_epochs(said) if steps.leads and not said.starting and not said.leaving else {}
        why_older = _why_older(said, older)
        if why_older and (older or cluster.map.has_copies):
            may_act = False
            steps.put_down(said)  # others take over until it may act again
        else:
            may_act = steps.heard(said)
            if node.state == "down" and steps.leads and not said.starting and not said.leaving:
                await steps.until_up(node.id)
                may_act = steps.heard(said)
        node, shown = cluster.shown(said.node_id)
        lease, why_none = (0.0, why_older)
        if not why_older and not said.starting and not said.leaving:
            lease, why_none = self._lease(node, said.map_version, shown.version, may_act)
        return Registered(
            node_number=node.number,
            map=shown if said.map_version != shown.version else None,
            lease_s=lease,
            why_no_lease=why_none,
            is_shared=cluster.is_shared,
            jobs_scheduler=self._scheduler() if steps.leads else "",
            proxy_url=self._advertised(),
            older=older,
        )

    def _lease(self, node: NodeEntry, map_version: int, version: int, may_act: bool) -> tuple[float, str]:
        """Return for how long a node that was heard just now may act, and if it may not, why."""
        if node.state != "up":
            return 0.0, ""
        ahead_s = self._cluster.clock_ahead_s(node.id)
        if ahead_s > CLOCK_AHEAD_S_MAX:
            # Versions follow the newest clock, so all nodes would soon count from its time.
            return 0.0, f"its clock is {ahead_s / 3600:.1f} h ahead of most nodes; set the clock that is wrong"
        if map_version > version:
            # It would go on with that map until the registry's has passed it, perhaps knowing buckets that nobody else knows.
            return 0.0, (
                f"its map has version {map_version}, but the registry is at {version}; if that stays so, the registry is an old"
                " copy (docs/operations.md, 'A registry that is lost')"
            )
        if not self._steps.leads:
            return 0.0, "no proxy is the coordinator of the cluster at the moment"
        return (self._lease_s, "") if may_act else (0.0, "its disks are not those of the cluster map any more, or are down")


def _why_older(said: Registration, older: Mapping[str, int]) -> str:
    """Why a target whose disks were put back to an earlier state may not act; empty if it may.

    What other disks have of their objects they are given. What only they had is lost, and may seem never to have been there:
    then somebody has to accept that first.
    """
    if older:
        return f"disk {min(older)} was put back to an earlier state: it has come less far than was reported before"
    if said.unaccepted and not said.leaving:
        return (
            f"disk {min(said.unaccepted)} was put back to an earlier state: objects with one copy are lost or old there. Stop"
            " the target, put back a newer state if there is one, run `dfc disk accept` on its directory and start it again"
        )
    return ""
