"""What every registry must do: `class TestMine(RegistryConformance)` with a fixture `peers`, and where there are several
proxies at a time `class TestMine(SwapConformance)`."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from harness import until
from registering import bucket, said

from dfc.errors import BadName, BadRequest, BucketConflict, BucketNotFound, TooLarge, Unavailable
from dfc.registry.base import RECORD_BYTES_MAX, Lease, LeaseHeld, LeaseLost, Registry, boot_s
from dfc.registry.changes import RegistryState, change_bucket, create_bucket, ensure_bucket, join, remove_bucket

PATIENCE_S = 10.0


def silence(monkeypatch: pytest.MonkeyPatch, registry: Registry, holder: str, how: Any = None) -> None:
    """From now on no renewal by this holder gets through: it hangs, or raises `how`."""
    renew = registry.renew_lease

    async def silenced(grant: Any) -> bool:
        if grant.holder != holder:
            return await renew(grant)
        if how is not None:
            raise how
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(registry, "renew_lease", silenced)


async def turns(count: int) -> None:
    """Let everything else run so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def hold_for_ever(context: Any, held: list[Lease]) -> None:
    async with context as lease:
        held.append(lease)
        await asyncio.Event().wait()


async def end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class RegistryConformance:
    """`peers`: two users of the same new registry, which may be the same object. `lease_s`: a short lease that it can keep."""

    lease_s = 0.8

    # --- changes

    async def test_a_change_is_there_when_it_is_made(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        version = one.map.version
        state = await one.change(create_bucket(bucket("b")))
        assert (state.map.version, one.map.version) == (version + 1, version + 1)
        assert state.map.bucket("b") == one.map.bucket("b") == bucket("b")
        # Elsewhere it is what a change that changes nothing reads.
        assert (await other.change(lambda found: found)).map.bucket("b") == bucket("b")
        assert (await other.change(ensure_bucket(bucket("b", 2)))).map.bucket("b") == bucket("b")
        assert one.map.version == version + 1

    async def test_changes_at_once_are_all_made(self, peers: tuple[Registry, Registry]) -> None:
        before = peers[0].map
        names = [f"b{number}" for number in range(30)]
        changes = [create_bucket(bucket(name)) for name in names]
        changes += [join(said(f"t{number}", (f"d{number}",), before.cluster_id)) for number in range(10)]
        states = await asyncio.gather(*(peers[number % 2].change(change) for number, change in enumerate(changes)))
        assert sorted(state.map.version for state in states) == [before.version + 1 + n for n in range(len(changes))]
        last = (await peers[0].change(lambda state: state)).map
        assert [found.name for found in last.buckets] == sorted(names)
        assert sorted(node.number for node in last.nodes) == list(range(1, 11))

    async def test_creators_at_once_make_one_bucket(self, peers: tuple[Registry, Registry]) -> None:
        version = peers[0].map.version
        made = await asyncio.gather(*(peers[n % 2].change(create_bucket(bucket("b", n))) for n in range(20)))
        ids = {state.map.bucket("b").id for state in made}  # type: ignore[union-attr]
        assert len(ids) == 1
        assert (await peers[0].change(lambda state: state)).map.version == version + 1

    async def test_what_a_function_raises_is_raised_and_nothing_is_changed(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        await one.change(create_bucket(bucket("b")))
        before = await one.change(lambda state: state)
        with pytest.raises(BucketConflict):
            await one.change(create_bucket(bucket("b", copies=2)))
        with pytest.raises(BucketNotFound):
            await other.change(change_bucket("c", copies=2))

        def broken(state: RegistryState) -> RegistryState:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await one.change(broken)
        assert await other.change(lambda state: state) == before
        await one.change(remove_bucket("b", "b-0"))  # it goes on
        assert one.map.bucket("b") is None

    async def test_what_is_no_step_is_refused(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers

        def leap(state: RegistryState) -> RegistryState:
            return msgspec.structs.replace(state, map=msgspec.structs.replace(state.map, version=state.map.version + 2))

        before = await one.change(lambda state: state)
        with pytest.raises(ValueError):
            await one.change(leap)
        assert await other.change(lambda state: state) == before

    async def test_a_change_that_is_cancelled_is_made_or_not(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        for number in range(20):
            name = f"b{number}"
            before = (await other.change(lambda state: state)).map.version
            task = asyncio.create_task(one.change(create_bucket(bucket(name))))
            await turns(number % 5)
            await end(task)
            await one.change(lambda state: state)  # the changes of one proxy are made in order
            await other.change(create_bucket(bucket("after", number)))  # it goes on
            found = (await other.change(remove_bucket("after", f"after-{number}"))).map
            assert found.version - before == 2 + (found.bucket(name) is not None)

    # --- watching

    async def test_who_watches_sees_each_newest_version(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        seen = [other.map.version]

        async def watch() -> None:
            while True:
                cluster_map = await other.watch(seen[-1])
                assert cluster_map.version > seen[-1]
                seen.append(cluster_map.version)
                await asyncio.sleep(0.001)

        task = asyncio.create_task(watch())
        for number in range(20):
            last = await one.change(create_bucket(bucket(f"b{number}")))
        await until(lambda: seen[-1] == last.map.version or task.done())
        last = await one.change(create_bucket(bucket("late")))
        await until(lambda: seen[-1] == last.map.version or task.done())
        assert not task.done()
        await end(task)
        assert await other.watch(0) == other.map  # what is there already is not waited for

    async def test_nobody_is_woken_for_nothing(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        task = asyncio.create_task(other.watch(other.map.version))
        await one.change(lambda state: state)
        with pytest.raises(BucketNotFound):
            await one.change(change_bucket("c", copies=2))
        await asyncio.sleep(0.02)
        assert not task.done()
        await one.change(create_bucket(bucket("b")))
        async with asyncio.timeout(PATIENCE_S):
            assert (await task).bucket("b") is not None

    async def test_those_who_watch_are_told_of_a_change_whose_caller_was_cancelled(
        self, peers: tuple[Registry, Registry]
    ) -> None:
        one, other = peers
        for number in range(10):
            version = other.map.version
            watching = asyncio.create_task(other.watch(version))
            await turns(1)
            task = asyncio.create_task(one.change(create_bucket(bucket(f"b{number}"))))
            await turns(1 + number % 3)
            await end(task)
            if (await other.change(lambda state: state)).map.version > version:
                async with asyncio.timeout(PATIENCE_S):
                    assert (await watching).version > version
            await end(watching)

    async def test_nothing_is_left_of_who_was_cancelled(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        async with one.lease("taken", "p0", self.lease_s):
            before = asyncio.all_tasks()
            for number in range(20):
                held: list[Lease] = []
                tasks = [
                    asyncio.create_task(other.watch(other.map.version)),
                    asyncio.create_task(hold_for_ever(other.lease("free", "p1", self.lease_s), held)),
                    asyncio.create_task(hold_for_ever(other.elect("taken", "p1", self.lease_s), held)),
                ]
                await turns(number)
                await end(*tasks)
                assert all(not lease.is_held for lease in held)
                assert asyncio.all_tasks() == before
        # Neither do those who are gone have anything, nor are they in anybody's way.
        async with asyncio.timeout(PATIENCE_S), other.elect("free", "p2", self.lease_s), one.elect("taken", "p2", self.lease_s):
            pass

    # --- leases

    async def test_a_lease_is_one_holders_alone(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        async with one.lease("jobs/a", "p1", self.lease_s) as lease:
            assert lease.is_held
            for registry, holder in ((other, "p2"), (other, "p1"), (one, "p1")):
                with pytest.raises(LeaseHeld, match="held by p1"):
                    async with registry.lease("jobs/a", holder, self.lease_s):
                        pass
            async with other.lease("jobs/b", "p2", self.lease_s):
                pass
        assert not lease.is_held
        assert lease.lost.is_set()
        assert not await other.renew_lease(lease.grant)
        async with other.lease("jobs/a", "p2", self.lease_s) as next_one:
            assert next_one.grant.token != lease.grant.token
            await one.revoke_lease(lease.grant)  # an old one that comes late
            assert await other.renew_lease(next_one.grant)
            with pytest.raises(LeaseHeld, match="held by p2"):
                async with one.lease("jobs/a", "p1", self.lease_s):
                    pass

    async def test_who_has_a_lease_is_known_with_its_address(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        assert one.held("office") is None
        async with one.elect("office", "p1", self.lease_s, "http://one:1") as lease:
            await until(lambda: other.held("office") == lease.grant)
            assert (lease.grant.holder, lease.grant.url) == ("p1", "http://one:1")
            with pytest.raises(LeaseHeld):
                async with other.lease("office", "p2", self.lease_s, "http://two:2"):
                    pass
        await until(lambda: other.held("office") is None)
        async with other.lease("office", "p2", self.lease_s):
            await until(lambda: (one.held("office") or lease.grant).holder == "p2")
            assert other.held("other") is None

    async def test_a_lease_is_kept_for_as_long_as_its_holder_lives(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        async with one.lease("a", "p1", self.lease_s) as lease:
            end_s = time.monotonic() + 2 * self.lease_s
            while time.monotonic() < end_s:
                await asyncio.sleep(self.lease_s / 10)
                assert lease.is_held
                with pytest.raises(LeaseHeld):
                    async with other.lease("a", "p2", self.lease_s):
                        pass

    @pytest.mark.parametrize("how", [None, Unavailable("gone"), RuntimeError("a mistake")])
    async def test_a_holder_that_is_silent_loses_it_before_another_has_it(
        self, peers: tuple[Registry, Registry], monkeypatch: pytest.MonkeyPatch, how: Any
    ) -> None:
        one, other = peers
        async with one.lease("a", "p1", self.lease_s) as lease:
            silence(monkeypatch, one, "p1", how)
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with suppress(LeaseHeld):
                        async with other.lease("a", "p2", self.lease_s):
                            assert not lease.is_held
                            await lease.lost.wait()
                            break
                    await asyncio.sleep(0.005)

    @pytest.mark.parametrize("name", ["", "A", "a b", "/a", "a/", "a//b", "..", "a/../b", "a\n", "ä", "a" * 129, "a\0"])
    async def test_names_of_leases(self, peers: tuple[Registry, Registry], name: str) -> None:
        for context in (peers[0].lease(name, "p1", 1.0), peers[0].elect(name, "p1", 1.0)):
            with pytest.raises(BadName):
                async with context:
                    pass

    @pytest.mark.parametrize("holder", ["", "a b", "a/b", "ä", "a" * 65, "a\n"])
    async def test_names_of_holders(self, peers: tuple[Registry, Registry], holder: str) -> None:
        with pytest.raises(BadName):
            async with peers[0].lease("a", holder, 1.0):
                pass

    @pytest.mark.parametrize("ttl_s", [0.0, -1.0, 0.01, 1e9, float("nan"), float("inf")])
    async def test_times_of_leases(self, peers: tuple[Registry, Registry], ttl_s: float) -> None:
        with pytest.raises(BadRequest):
            async with peers[0].lease("a", "p1", ttl_s):
                pass

    # --- elections

    async def test_the_next_leads_when_the_first_gives_it_back(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        leaders: list[Lease] = []
        async with one.elect("office", "p1", self.lease_s) as first:
            waiting = [
                asyncio.create_task(hold_for_ever(other.elect("office", f"p{number}", self.lease_s), leaders))
                for number in (2, 3)
            ]
            await asyncio.sleep(1.5 * self.lease_s)
            assert first.is_held
            assert leaders == []
        await until(lambda: len(leaders) == 1)
        assert not first.is_held
        await end(waiting[int(leaders[0].grant.holder[1:]) - 2])
        await until(lambda: len(leaders) == 2)
        assert [leader.is_held for leader in leaders] == [False, True]
        await end(*waiting)

    async def test_what_is_given_back_is_free_at_once(self, peers: tuple[Registry, Registry]) -> None:
        """Nobody waits for the end of its time."""
        one, other = peers
        leaders: list[Lease] = []
        async with asyncio.timeout(PATIENCE_S):
            async with one.elect("office", "p1", 10 * PATIENCE_S):
                waiting = asyncio.create_task(hold_for_ever(other.elect("office", "p2", 10 * PATIENCE_S), leaders))
                await asyncio.sleep(0.05)
                assert leaders == []
            await until(lambda: leaders)
            await end(waiting)
            async with one.lease("office", "p1", 10 * PATIENCE_S):
                pass

    async def test_the_next_leads_when_the_first_has_lost_it(
        self, peers: tuple[Registry, Registry], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = peers
        leaders: list[Lease] = []
        async with one.elect("office", "p1", self.lease_s) as first:
            waiting = asyncio.create_task(hold_for_ever(other.elect("office", "p2", self.lease_s), leaders))
            await asyncio.sleep(self.lease_s / 2)
            silence(monkeypatch, one, "p1")
            async with asyncio.timeout(PATIENCE_S):
                await first.lost.wait()
            await until(lambda: leaders)
            assert not first.is_held
            assert leaders[0].is_held
        await asyncio.sleep(1.5 * self.lease_s)  # the first has given back what it had no longer
        assert leaders[0].is_held
        await end(waiting)

    async def test_a_change_under_a_lease_that_is_over_is_refused(
        self, peers: tuple[Registry, Registry], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = peers
        async with one.elect("office", "p1", self.lease_s) as first:
            await one.change(create_bucket(bucket("b1")), fence=first)
            silence(monkeypatch, one, "p1")
            async with other.elect("office", "p2", self.lease_s) as second:
                await other.change(create_bucket(bucket("b2")), fence=second)
                # One that believes to have it still: its clock stood.
                deceived = Lease(first.grant, boot_s() + 1000, boot_s)
                for lease in (first, deceived):
                    with pytest.raises(LeaseLost):
                        await one.change(create_bucket(bucket("b3")), fence=lease)
        with pytest.raises(LeaseLost):
            await other.change(create_bucket(bucket("b3")), fence=second)
        assert [found.name for found in (await other.change(lambda state: state)).map.buckets] == ["b1", "b2"]

    # --- the end

    async def test_after_the_end_everything_is_unavailable(self, peers: tuple[Registry, Registry]) -> None:
        one, _ = peers
        held: list[Lease] = []
        holding = asyncio.create_task(hold_for_ever(one.lease("a", "p1", 10 * PATIENCE_S), held))
        await until(lambda: held)
        waiting = [
            asyncio.create_task(one.watch(one.map.version)),
            asyncio.create_task(hold_for_ever(one.elect("a", "p2", self.lease_s), [])),
        ]
        await turns(5)
        before = one.map
        async with asyncio.timeout(PATIENCE_S):
            await one.close()
            for task in waiting:
                with pytest.raises(Unavailable):
                    await task
        await end(holding)
        assert one.map == before
        for call in (
            one.change(lambda state: state),
            one.watch(0),
            one.lease("b", "p1", self.lease_s).__aenter__(),
            one.elect("b", "p1", self.lease_s).__aenter__(),
        ):
            with pytest.raises(Unavailable):
                await call
        await one.close()

    # --- records

    async def test_records_are_written_under_a_lease_and_read_by_all(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        version = one.map.version
        async with one.lease("office", "p1", self.lease_s) as lease:
            await one.keep("jobs/a", b"1", lease)
            await one.keep("jobs/b", b"\0\xff", lease)
            await one.keep("other/c", b"", lease)
            await one.keep("jobs/a", b"2", lease)
            assert one.records("jobs/") == {"jobs/a": b"2", "jobs/b": b"\0\xff"}
            await until(lambda: other.records("") == {**one.records("jobs/"), "other/c": b""})
            await one.keep("jobs/b", None, lease)
            await one.keep("jobs/none", None, lease)
            await until(lambda: set(other.records("jobs/")) == {"jobs/a"})
        assert one.map.version == version  # they are no part of the map

    async def test_who_has_lost_the_lease_writes_no_record(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        async with one.lease("office", "p1", self.lease_s) as lease:
            await one.keep("a", b"1", lease)
        async with other.lease("office", "p2", self.lease_s) as next_one:
            assert other.records("") == {"a": b"1"}  # at once: all that was written before
            lease.lost.clear()  # a holder that has not noticed
            lease._until_s = boot_s() + 60
            with pytest.raises(LeaseLost):
                await one.keep("a", b"2", lease)
            with pytest.raises(LeaseLost):
                await one.keep("a", None, lease)
            await other.keep("b", b"3", next_one)
            await until(lambda: one.records("") == {"a": b"1", "b": b"3"})

    async def test_what_cannot_be_a_record(self, peers: tuple[Registry, Registry]) -> None:
        one, _ = peers
        async with one.lease("office", "p1", self.lease_s) as lease:
            for name in ("", "A", "/a", "a/../b", "a" * 129):
                with pytest.raises(BadName):
                    await one.keep(name, b"", lease)
            with pytest.raises(TooLarge):
                await one.keep("a", bytes(RECORD_BYTES_MAX + 1), lease)
            await one.keep("a", bytes(RECORD_BYTES_MAX), lease)
            assert len(one.records("")["a"]) == RECORD_BYTES_MAX


class SwapConformance(RegistryConformance):
    """For registries that other processes change as well. `meddle(registry, changes)`: each of these changes is made by
    another proxy between a read and a write of `registry`, one for each attempt."""

    def meddle(self, registry: Registry, changes: list[Any]) -> None:
        raise NotImplementedError

    async def test_a_foreign_change_in_between_is_kept_and_ours_is_made_on_top(self, peers: tuple[Registry, Registry]) -> None:
        one, other = peers
        version = one.map.version
        self.meddle(one, [create_bucket(bucket(f"theirs-{number}")) for number in range(5)])
        read: list[int] = []
        ours = create_bucket(bucket("ours"))

        def change(state: RegistryState) -> RegistryState:
            read.append(state.map.version)
            return ours(state)

        state = await one.change(change)
        assert read == [version + number for number in range(6)]
        assert (state.map.version, len(state.map.buckets)) == (version + 6, 6)
        assert (await other.change(lambda found: found)).map == state.map

    async def test_a_foreign_change_may_forbid_ours(self, peers: tuple[Registry, Registry]) -> None:
        one, _ = peers
        self.meddle(one, [create_bucket(bucket("b", 7, copies=2))])
        with pytest.raises(BucketConflict):
            await one.change(create_bucket(bucket("b", 8)))
        self.meddle(one, [create_bucket(bucket("c", 7))])
        assert (await one.change(create_bucket(bucket("c", 8)))).map.bucket("c") == bucket("c", 7)

    async def test_nodes_that_join_at_once_get_numbers_of_their_own(self, peers: tuple[Registry, Registry]) -> None:
        one, _ = peers
        cluster_id = one.map.cluster_id
        self.meddle(one, [join(said("t2", ("d2",), cluster_id))])
        state = await one.change(join(said("t1", ("d1",), cluster_id)))
        assert {node.id: node.number for node in state.map.nodes} == {"t1": 2, "t2": 1}
