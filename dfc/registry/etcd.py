"""The registry in etcd: all proxies read the same keys, and change them only from the state that they have read.

One task follows the keys, another makes the changes, all that wait at a time in one transaction. A transaction that was not
answered may have been made: each writes a mark of its own beside what it changes, by which that is found out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

import msgspec

from dfc.errors import DfcError, OperatorError, Unavailable
from dfc.http.shutdown import end
from dfc.placement.map import ClusterMap
from dfc.registry.base import CLOSED, Grant, Lease, LeaseHeld, LeaseLost, SharedRegistry, check_record
from dfc.registry.changes import Change, RegistryState, check_step
from dfc.registry.gateway import (
    ACCESS_CODES,
    CHANGES,
    FORMAT,
    LEASES,
    META,
    RECORDS,
    VERSION,
    EtcdGateway,
    EtcdPlace,
    EtcdRefused,
    Fields,
    KeyValue,
    Meta,
    Mirror,
    NotReached,
    TxnAnswer,
    delete,
    end_of,
    find,
    is_new,
    is_of_revision,
    is_under_lease,
    other_format,
    put,
    written,
)

_log: Final = logging.getLogger("dfc.registry")
OPEN_S: Final = 30.0  # for the first answer of etcd
CHANGE_S: Final = 8.0  # for a change: when the leader of etcd is lost, the next one is there in 2 s
RETRY_S: Final = 0.2
CHECK_S: Final = 2.0  # between two looks whether all changes have been told of
SILENT_S: Final = 6.0  # without an answer for so long, it is said that etcd does not answer
LATE_S: Final = 1.0  # a change that was not told of for so long is read
WAITING_MAX: Final = 10_000  # changes that wait for their turn
RETRY_BUSY_S: Final = 2
TOGETHER_MAX: Final = 50  # changes in one transaction; etcd takes 128 operations
_LOST: Final = "stop all proxies, and make it anew with `dfc registry recover` (docs/operations.md)"


class _QueuedChange(NamedTuple):
    """A change that waits for its turn, and is given up at `until_s`, by the loop's clock."""

    change: Change
    fence: Lease | None
    done: asyncio.Future[RegistryState]
    until_s: float


class _Read(NamedTuple):
    """A state as it was read: the revisions of `meta` and `version` in it, by which a change of it is fenced."""

    state: RegistryState
    meta: int
    version: int


class _Draft(NamedTuple):
    """What becomes of some changes, one after the other, from a state that was read at a revision."""

    base: _Read
    results: list[RegistryState | Exception]
    state: RegistryState


class EtcdRegistry(SharedRegistry):
    """A registry below `prefix` in an etcd: see `etcd_registry`. `on_close` is called when it is closed."""

    kind = "etcd"

    def __init__(self, gateway: EtcdGateway, prefix: str, owner: str) -> None:
        super().__init__()
        self._gateway = gateway
        self._prefix = prefix
        self._mirror = Mirror(prefix)
        self._read: _Read | None = None
        self._trouble = ""  # why what is in etcd now cannot be used
        self._is_restored = False  # etcd knows less than it has told before
        self._mark = CHANGES + owner
        self._asked: list[_QueuedChange] = []
        self._has_asked = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # of the watch
        self._took_s: float | None = None
        self._answered_s = 0.0  # when etcd answered what only a majority of its members can, by the loop's clock
        self._tasks: list[asyncio.Task[None]] = []
        self.on_close: Callable[[], None] = lambda: None
        self.belongs_to = ""  # the cluster of which this proxy was when it was started before; empty: of none
        self.belongs_in = ""  # the file that says so
        self.on_open: Callable[[str], None] = lambda cluster_id: None

    async def open(self) -> None:
        """Read the state, or begin a cluster if there is none. OperatorError if etcd does not answer, or has something else."""
        try:
            async with asyncio.timeout(OPEN_S):
                await self._read_first()
        except TimeoutError:
            urls = ", ".join(self._gateway.urls)
            raise OperatorError(f"etcd does not answer; is it running? It was asked at {urls}") from None
        if self.belongs_to not in ("", self.map.cluster_id):
            raise OperatorError(
                f"the registry in etcd below {self._prefix} is that of cluster {self.map.cluster_id}, but this proxy was one of"
                f" cluster {self.belongs_to}: if that is lost, {_LOST}; if it is to leave that cluster, remove"
                f" {self.belongs_in}"
            )
        self.on_open(self.map.cluster_id)
        self._answered_s = asyncio.get_running_loop().time()
        self._tasks = [asyncio.create_task(each()) for each in (self._follow, self._check, self._work)]

    async def _read_first(self) -> None:
        while self._read is None:
            try:
                await self._read_all()
                if self._mirror.value(META) is None:
                    if self.belongs_to:
                        raise OperatorError(
                            f"there is no registry in etcd below {self._prefix}, but this proxy was one of cluster"
                            f" {self.belongs_to}: if it is lost, {_LOST}; to begin a new, empty cluster instead, remove"
                            f" {self.belongs_in}"
                        )
                    await self._begin_cluster()
            except Unavailable as error:
                if isinstance(error, EtcdRefused) and error.grpc_code in ACCESS_CODES:
                    raise OperatorError(f"{error.message}; see the settings etcd_user and etcd_password") from error
                _log.warning("%s", error.message)
                with suppress(Unavailable):  # without a quorum: the last state is enough for reads
                    await self._read_all(serializable=True)
                await asyncio.sleep(0 if self._read is not None else RETRY_S)
            if self._trouble and self._mirror.value(META) is not None:
                raise OperatorError(self._trouble)

    async def _begin_cluster(self) -> None:
        cluster_id = secrets.token_hex(8)
        state = RegistryState(map=ClusterMap(cluster_id=cluster_id, version=1, step=1))
        meta = msgspec.json.encode(Meta(cluster_id=cluster_id))
        begun = [put(self._prefix + META, meta), *written(self._prefix, None, state)]
        await self._gateway.transact([is_new(self._prefix + META)], begun, [])

    @property
    def map(self) -> ClusterMap:
        return self._known().map

    @property
    def latency_s(self) -> float | None:
        return self._took_s

    @property
    def why_silent(self) -> str:
        silent_s = asyncio.get_running_loop().time() - self._answered_s
        return self._trouble or (f"etcd has not answered for {silent_s:.0f} s" if silent_s >= SILENT_S else "")

    def _known(self) -> RegistryState:
        assert self._read is not None, "open it first"
        return self._read.state

    # --- following

    async def _read_all(self, *, serializable: bool = False) -> None:
        before = self._mirror.revision
        found, revision = await self._gateway.range(self._prefix, end_of(self._prefix), serializable=serializable)
        if not serializable:
            self._compare(before, revision)
        self._mirror.replace(found, revision)
        self._publish()

    def _compare(self, before: int, revision: int) -> None:
        """Compare the revision that an answer tells with the one that was known here before it was asked for. While it came,
        newer ones may have been told of."""
        self._is_restored = self._is_restored or revision < before

    def _publish(self) -> None:
        """Take over what the mirror shows, and wake those who wait for it. If it cannot be used, nothing may be changed: that
        would be changed back to what it was before."""
        trouble = ""
        try:
            self._take_over()
        except Unavailable as error:
            trouble = error.message
        except (LookupError, TypeError, ValueError) as error:
            trouble = f"what is in etcd below {self._prefix} cannot be understood: {error}"
        if trouble and trouble != self._trouble and self._read is not None:
            _log.error("the registry cannot be used: %s", trouble)
        self._trouble = trouble
        self._tell()

    def _take_over(self) -> None:
        if self._is_restored:
            raise Unavailable(f"etcd was restored from a copy, or is another one: {_LOST}")
        meta = self._mirror.meta()
        if meta is None:
            raise Unavailable(f"there is no registry in etcd below {self._prefix}: {_LOST}")
        if meta.format != FORMAT:
            raise Unavailable(other_format(meta.format))
        if meta.moved_to:
            raise Unavailable(f"the registry was moved out of etcd, to the directory of {meta.moved_to}")
        if meta.coming:
            raise Unavailable(
                "a registry is being written there: let `dfc registry` do its work, or say the same command again"
            )
        if self._read is not None and self._read.state.map.cluster_id != meta.cluster_id:
            raise Unavailable(f"the registry in etcd is that of another cluster now: {meta.cluster_id}")
        revisions = self._mirror.revision_of(META), self._mirror.revision_of(VERSION)
        if self._read is None or (self._read.meta, self._read.version) != revisions:
            state = self._mirror.state(meta.cluster_id)
            if self._read is not None and state.map.version <= self._read.state.map.version and state != self._read.state:
                raise Unavailable(f"version {state.map.version} of the cluster map is in etcd twice: {_LOST}")
            self._read = _Read(state, *revisions)

    async def _follow(self) -> None:
        """Keep the mirror up to date."""
        while True:
            try:
                changes = self._gateway.watch(self._prefix, end_of(self._prefix), self._mirror.revision + 1)
                async with asyncio.timeout(None) as self._limit, aclosing(changes):
                    async for some in changes:
                        self._mirror.take(some)
                        self._publish()
            except (Unavailable, TimeoutError) as error:
                _log.info("reading the registry anew: %s", error)
            except Exception:
                _log.exception("following the registry failed; reading it anew")
                await asyncio.sleep(CHECK_S)
            await asyncio.sleep(RETRY_S)
            with suppress(Unavailable):
                await self._read_all()

    async def _check(self) -> None:
        """Look now and then whether changes are told of: a member that is cut off, or hangs, tells of none."""
        while True:
            await asyncio.sleep(CHECK_S)
            with suppress(Unavailable):
                before, asked_s = self._mirror.revision, asyncio.get_running_loop().time()
                found, revision = await self._gateway.range(self._prefix + VERSION)
                self._answered_s, self._took_s = asked_s, asyncio.get_running_loop().time() - asked_s
                self._compare(before, revision)
                if self._is_restored:
                    self._publish()
                await self._catch_up(max((each.revision for each in found), default=0))

    async def _catch_up(self, revision: int) -> None:
        """Wait until the map of this revision is known here. If it is not told of, read it. Unavailable."""
        await self._until_told(lambda: self._mirror.revision_of(VERSION) >= revision)

    async def _until_revision(self, revision: int) -> None:
        """Wait until everything up to this revision is known here. Unavailable."""
        await self._until_told(lambda: self._mirror.revision >= revision)

    async def _until_told(self, is_known: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(LATE_S):
                while not is_known():
                    await self._changed.wait()
        except TimeoutError:
            self._leave_member()
            await self._read_all()

    def _leave_member(self) -> None:
        """Follow another member from now on."""
        with suppress(RuntimeError):  # it is being left already
            if self._limit is not None:
                self._limit.reschedule(asyncio.get_running_loop().time())
        self._gateway.leave(self._gateway.url)

    # --- changes

    async def change(self, change: Change, *, fence: Lease | None = None) -> RegistryState:
        self._check_open()
        if len(self._asked) >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} changes of the registry are waiting already", retry_after_s=RETRY_BUSY_S)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[RegistryState] = loop.create_future()
        self._asked.append(_QueuedChange(change, fence, done, loop.time() + CHANGE_S))
        self._has_asked.set()
        return await done

    async def _work(self) -> None:
        """Make the changes that are asked for."""
        while True:
            await self._has_asked.wait()
            some = self._take_some()
            try:
                await self._make(some)
            except DfcError as error:
                if isinstance(error, EtcdRefused):  # that it does not answer, if so, is noticed anyway
                    self._note_written(f"etcd makes no changes: {error.message}")
                _fail(some, error)
            except Exception as error:
                _log.exception("changing the registry failed")
                _fail(some, Unavailable(f"the registry cannot be changed: {error}"))
            except asyncio.CancelledError:
                _fail(some, Unavailable(CLOSED))
                raise

    def _take_some(self) -> list[_QueuedChange]:
        """The first of the changes, and those after it that may be made with it: under the same lease, or none."""
        self._asked = [each for each in self._asked if not each.done.done()]
        now_s = asyncio.get_running_loop().time()
        _fail([each for each in self._asked if each.until_s <= now_s], Unavailable("etcd makes no changes at the moment"))
        self._asked = [each for each in self._asked if not each.done.done()]
        some: list[_QueuedChange] = []
        while self._asked and len(some) < TOGETHER_MAX and (not some or self._asked[0].fence is some[0].fence):
            some.append(self._asked.pop(0))
        if not self._asked:
            self._has_asked.clear()
        return some

    async def _make(self, some: Sequence[_QueuedChange]) -> None:
        """Make some changes in one transaction. LeaseLost: nothing was changed. Unavailable: perhaps something was."""
        if not some:
            return
        fence, mark, draft, is_unsure = some[0].fence, secrets.token_hex(8).encode(), None, False
        until_s = min(each.until_s for each in some)
        while draft is None or self._mirror.value(self._mark) != mark:
            draft = self._draft(some)
            if fence is not None and not fence.is_held:
                # A transaction that was not answered may still be made: the lease lasts longer in etcd than its holder counts.
                raise Unavailable("etcd has not answered a change") if is_unsure else _lost(fence)
            try:
                answer = await self._submit(draft, mark, fence)
            except Unavailable as error:
                if isinstance(error, EtcdRefused) or asyncio.get_running_loop().time() > until_s:
                    raise
                _log.info("changing the registry again: %s", error.message)
                await asyncio.sleep(RETRY_S)
                if not isinstance(error, NotReached):
                    is_unsure = True
                    await self._look_again(until_s)
                continue
            if answer.succeeded:
                if draft.state is not draft.base.state:
                    self._note_written()
                    await self._catch_up(answer.revision)
                break
            if await self._is_made(answer, mark, fence):
                break
            if asyncio.get_running_loop().time() > until_s:
                raise Unavailable("others change the registry all the time")
        _tell(some, draft)

    async def _is_made(self, answer: TxnAnswer, mark: bytes, fence: Lease | None) -> bool:
        """After a transaction whose conditions did not hold: whether it was made before, as its mark says. LeaseLost."""
        version, marked, *held = answer.found
        if not version:
            raise Unavailable(f"there is no registry in etcd below {self._prefix}")
        before = self._known().map.version
        await self._catch_up(version[0].revision)
        if marked and marked[0].value == mark:
            return True
        if fence is not None and not (held and held[0] and held[0][0].lease == fence.grant.token):
            raise _lost(fence)
        if self._known().map.version == before:
            await asyncio.sleep(RETRY_S)
        return False

    def _draft(self, some: Sequence[_QueuedChange]) -> _Draft:
        """Apply changes to the state that is known here. Unavailable if what is in etcd is another one."""
        base = self._read
        if self._trouble or base is None:
            raise Unavailable(self._trouble or "the registry is not open")
        state, results = base.state, list[RegistryState | Exception]()
        for each in some:
            try:
                new = each.change(state)
                if new is not state:
                    check_step(state, new)
                results.append(state := new)
            except Exception as error:
                results.append(error)
        return _Draft(base, results, state)

    async def _submit(self, draft: _Draft, mark: bytes, fence: Lease | None) -> TxnAnswer:
        """Store what became of changes, if the state from which they were made is the newest; if nothing did, only ask that."""
        compare = [
            is_of_revision(self._prefix + META, draft.base.meta),
            is_of_revision(self._prefix + VERSION, draft.base.version),
        ]
        failure = [find(self._prefix + VERSION), find(self._prefix + self._mark)]
        operations: list[Fields] = []
        if draft.state is not draft.base.state:
            operations = [*written(self._prefix, draft.base.state, draft.state), put(self._prefix + self._mark, mark)]
        if fence is not None:
            key = self._prefix + LEASES + fence.grant.name
            compare.append(is_under_lease(key, fence.grant.token))
            failure.append(find(key))
        return await self._gateway.transact(compare, operations, failure)

    async def _look_again(self, until_s: float) -> None:
        """Read everything, as soon as etcd answers. Unavailable."""
        while True:
            try:
                return await self._read_all()
            except Unavailable:
                if asyncio.get_running_loop().time() > until_s:
                    raise
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await end(*self._tasks)
        _fail(self._asked, Unavailable(CLOSED))
        self._asked = []
        self._changed.set()
        await self._gateway.close()
        self.on_close()

    # --- records

    def records(self, prefix: str) -> dict[str, bytes]:
        return {prefix + rest: value for rest, value in self._mirror.values(RECORDS + prefix).items()}

    async def keep(self, name: str, value: bytes | None, fence: Lease) -> None:
        check_record(name, value)
        key, held = self._prefix + RECORDS + name, self._prefix + LEASES + fence.grant.name
        operation = delete(key) if value is None else put(key, value)
        loop, is_unsure, revision = asyncio.get_running_loop(), False, self._mirror.revision_of(RECORDS + name)
        until_s = loop.time() + CHANGE_S
        while True:
            self._check_open()
            base = self._read
            if self._trouble or base is None:
                raise Unavailable(self._trouble or "the registry is not open")
            if not fence.is_held:
                raise Unavailable("etcd has not answered a change") if is_unsure else _lost(fence)
            # Of its revision: an earlier try that arrives late must not undo what was written since.
            untouched = is_of_revision(key, revision) if revision else is_new(key)
            compare = [is_of_revision(self._prefix + META, base.meta), is_under_lease(held, fence.grant.token), untouched]
            try:
                answer = await self._gateway.transact(compare, [operation], [find(held), find(key)])
            except Unavailable as error:
                if isinstance(error, EtcdRefused) or loop.time() > until_s:
                    raise
                _log.info("writing the record %s again: %s", name, error.message)
                is_unsure = is_unsure or not isinstance(error, NotReached)
                await asyncio.sleep(RETRY_S)
                continue
            if answer.succeeded:
                return await self._until_revision(answer.revision)
            leased, found = answer.found
            if (found[0].value if found else None) == value and (is_unsure or value is None):
                return await self._until_revision(answer.revision)  # an earlier try was made
            if not leased or leased[0].lease != fence.grant.token:
                raise Unavailable("etcd has not answered a change") if is_unsure else _lost(fence)
            if loop.time() > until_s:
                raise Unavailable("others change the registry all the time")
            revision = found[0].revision if found else 0  # it was not known here yet
            await self._look_again(until_s)

    # --- leases

    def held(self, name: str) -> Grant | None:
        found = self._mirror.found(LEASES + name)
        return None if found is None else _grant(found)

    def holders(self, prefix: str) -> list[Grant]:
        return [msgspec.json.decode(value, type=Grant) for value in self._mirror.values(LEASES + prefix).values()]

    async def grant_lease(self, name: str, holder: str, ttl_s: float, url: str = "") -> Grant:
        self._check_open()
        key = self._prefix + LEASES + name
        grant = Grant(name=name, holder=holder, ttl_s=ttl_s, token=await self._gateway.grant(math.ceil(ttl_s)), url=url)
        answer = await self._gateway.transact([is_new(key)], [put(key, msgspec.json.encode(grant), grant.token)], [find(key)])
        if not answer.succeeded:
            with suppress(Unavailable):
                await self._gateway.revoke(grant.token)
            raise LeaseHeld(f"the lease {name} is held by {_grant(answer.found[0][0]).holder}")
        await self._until_revision(answer.revision)  # so that it sees what was written under it before
        return grant

    async def renew_lease(self, grant: Grant) -> bool:
        self._check_open()
        return await self._gateway.keep_alive(grant.token)

    async def revoke_lease(self, grant: Grant) -> None:
        await self._gateway.revoke(grant.token)

    async def lease_vacancy(self, name: str) -> None:
        key = LEASES + name
        while True:
            self._check_open()
            found, _ = await self._gateway.range(self._prefix + key)
            if not found:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    while self._mirror.revision < found[0].revision or self._mirror.value(key) is not None:
                        self._check_open()
                        await self._changed.wait()


def _grant(found: KeyValue) -> Grant:
    return msgspec.json.decode(found.value or b"", type=Grant)


def _lost(fence: Lease) -> LeaseLost:
    return LeaseLost(f"the lease {fence.grant.name} of {fence.grant.holder} has expired")


def _tell(some: Sequence[_QueuedChange], draft: _Draft) -> None:
    for each, result in zip(some, draft.results, strict=True):
        if each.done.done():
            continue
        if isinstance(result, Exception):
            each.done.set_exception(result)
        else:
            each.done.set_result(result)


def _fail(some: Sequence[_QueuedChange], error: Exception) -> None:
    for each in some:
        if not each.done.done():
            each.done.set_exception(error)


def etcd_registry(place: EtcdPlace, owner: str) -> EtcdRegistry:
    """The registry that is there; opening it begins a cluster if there is none. `owner` is the id of the one proxy that uses
    it. OperatorError."""
    return EtcdRegistry(EtcdGateway(place.urls, place.access), place.below, owner)
