"""How a cluster is, and what it says of that: see docs/http.md."""

from __future__ import annotations

import msgspec


class ClusterProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it should be. `severity`: "critical", "warning", or "info" for what is only being done.

    `subject` names the target, disk or bucket, if it is about one; `since` is RFC 3339 UTC; `docs` is the page about it.
    """

    code: str
    severity: str
    subject: str = ""
    since: str = ""
    message: str = ""
    what_to_do: str = ""
    docs: str = ""


class ProblemList(msgspec.Struct, frozen=True, kw_only=True):
    problems: tuple[ClusterProblem, ...] = ()


class MissingCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Objects with one copy left that should have more, with fewer copies than wanted, and with none that can be read now.
    `estimated`: some of these are estimates."""

    one_left: int = 0
    missing: int = 0
    unavailable: int = 0
    estimated: bool = False


class OutOfSyncDisk(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that may lack writes: nobody reads from it until those in `out_of_sync_with` have given it everything. `hints`:
    how many objects and deletes that are, as far as it is known."""

    disk: str
    node: str
    out_of_sync_with: tuple[str, ...] = ()
    since: str = ""
    hints: int | None = None


class RaisedBucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket whose objects are getting more copies; `disks_done` of `disks` have given away everything."""

    bucket: str
    copies: int
    copies_wanted: int
    disks_done: int = 0
    disks: int = 0


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Objects are moved to other disks, by the layout `to`. `slices`: how many of the 256 parts of all names are "done",
    which is done, "copying", "moving" or "moved". `disks_in` had no objects, `disks_out` are to have none any more, copies that
    were on `disks_lost` are made anew, and `disks_weighed` have another weight than before. `hints`: how many objects and
    deletes are to be copied, as far as it is known, `repair_rate` fewer each second, so that it may take another `eta_s`;
    `waits_for`: what holds up the rest; `paused`: it rests (`Client.rebalance`)."""

    to: int
    slices: dict[str, int]
    disks_in: tuple[str, ...] = ()
    disks_out: tuple[str, ...] = ()
    disks_lost: tuple[str, ...] = ()
    disks_weighed: tuple[str, ...] = ()
    hints: int | None = None
    waits_for: tuple[str, ...] = ()
    paused: bool = False
    repair_rate: float | None = None
    eta_s: float | None = None

    @property
    def done(self) -> float:
        """The share of what is done: 0 to 1. Copying is one half, and handing over the other."""
        count, done = sum(self.slices.values()) or 1, self.slices.get("done", 0)
        return (done + 0.5 * (count - done - self.slices.get("copying", 0))) / count


class Rebalance(msgspec.Struct, frozen=True):
    """How objects are moved between disks: `paused` or not, and with how many bytes a second from each disk (0: no limit)."""

    paused: bool
    rate_bytes_per_s: int


class CheckedPair(msgspec.Struct, kw_only=True):
    """A disk compared with another replica of objects of which it is the primary. `differing` of `rows` objects were not the
    same: `repaired` are by now, `under_way` are on their way, `set_aside` were not known to the primary, and `alarms` are left
    as they are. `not_compared`: why it could not be done."""

    replica: str
    rows: int = 0
    differing: int = 0
    repaired: int = 0
    under_way: int = 0
    set_aside: int = 0
    alarms: int = 0
    not_compared: str = ""


class CheckedObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of which the disk `replica` did not have what its primary has. `what`: "missing", it gets that; "lost", the
    primary has lost it and gets it; "set aside"; or "alarm", nothing was touched."""

    bucket: str
    object: str
    replica: str
    what: str
    message: str = ""


class CheckedDisk(msgspec.Struct, kw_only=True):
    """How far a disk is with comparing what it is the primary of. `state`: "waiting", "running", "done", or "unknown", for the
    reason `why`. `rows_read` of `rows_total` objects are in its digests; `pairs` are done, of `pairs_total`. `found`: the first
    hundred of the differences."""

    disk: str
    node: str
    state: str = "waiting"
    why: str = ""
    rows_read: int = 0
    rows_total: int = 0
    pairs_total: int = 0
    pairs: list[CheckedPair] = []
    found: list[CheckedObject] = []


class CheckedTotals(msgspec.Struct, kw_only=True):
    """The sums over all pairs of disks."""

    pairs: int = 0
    pairs_compared: int = 0
    rows: int = 0
    differing: int = 0
    repaired: int = 0
    under_way: int = 0
    set_aside: int = 0
    alarms: int = 0


class ClusterCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How far the last comparison of copies is. `state`: "none", "running" or "done"; `check`: by what it is known; `buckets`:
    those that were named, none if all are compared."""

    check: str = ""
    state: str = "none"
    began: str = ""
    buckets: tuple[str, ...] = ()
    totals: CheckedTotals = msgspec.field(default_factory=CheckedTotals)
    disks: tuple[CheckedDisk, ...] = ()

    @property
    def not_compared(self) -> tuple[str, ...]:
        """What could not be compared, and why; empty if all was."""
        unknown = [f"disk {disk.disk}: {disk.why}" for disk in self.disks if disk.state == "unknown"]
        pairs = ((disk.disk, pair) for disk in self.disks for pair in disk.pairs if pair.not_compared)
        return (*unknown, *(f"disk {disk} with {pair.replica}: {pair.not_compared}" for disk, pair in pairs))


class RunningProxy(msgspec.Struct, frozen=True, kw_only=True):
    """A proxy that runs, and where other nodes reach it."""

    id: str
    url: str = ""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cluster. `health` is "ok", "degraded", "read_only" or "unavailable"; `coordinator` the id of the proxy
    that is it, None if there is none; `rebalance_waits`: a move was asked for that has not begun."""

    health: str
    step: int
    map_version: int
    coordinator: str | None = None
    registry: str = ""
    registry_latency_s: float | None = None
    proxies: tuple[RunningProxy, ...] = ()
    problems: tuple[ClusterProblem, ...] = ()
    copies: MissingCopies = MissingCopies()
    out_of_sync: tuple[OutOfSyncDisk, ...] = ()
    raising: tuple[RaisedBucket, ...] = ()
    rebalance: Move | None = None
    rebalance_waits: bool = False


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has done: means of one step each, the oldest first, None where they are not known. Bytes, requests and errors
    are per second, `connections` are open ones, `disks` the share of the time in which each disk had something to do. `silent`:
    it did not answer, for the reason `why`; it did `silent_s` ago. `kind`: "target" or "proxy"."""

    id: str
    kind: str
    silent: bool = False
    silent_s: float | None = None
    why: str = ""
    bytes_in: list[float | None] = []
    bytes_out: list[float | None] = []
    requests: list[float | None] = []
    errors: list[float | None] = []
    connections: list[float | None] = []
    disks: dict[str, list[float | None]] = {}


class ClusterStats(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes have done in the last `seconds`, until a time (RFC 3339 UTC), in steps of `step_s` seconds."""

    seconds: int
    step_s: int
    until: str
    nodes: tuple[NodeFigures, ...] = ()
