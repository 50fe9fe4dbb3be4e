"""The embedded registry's file: restarts, failures, what is no registry, and who has it open."""

from __future__ import annotations

import os
import socket
import sqlite3
import tempfile

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from registering import Kept

from dfc.errors import BucketNotFound, Conflict, DiskRefused, OperatorError
from dfc.placement.map import BucketEntry, DiskEntry, RebalanceEntry
from dfc.placement.mapped import placement_of, wanted_layout
from dfc.placement.roles import LayoutSpec
from dfc.registry import changes
from dfc.registry.changes import weigh_disks
from dfc.registry.embedded import RegistryFile
from dfc.replication import transitions


class Filed(Kept):
    """Changes of a registry file."""

    def __init__(self, directory) -> None:
        self.file = RegistryFile(str(directory))

    def apply(self, change):
        return self.file.apply(change)

    @property
    def map(self):
        return self.file.state.map

    def close(self) -> None:
        self.file.close()

    @property
    def database(self) -> sqlite3.Connection:
        return self.file._database


@pytest.fixture
def open_registry(tmp_path):
    """Opens the registry of the test's directory, again and again."""
    opened = []

    def make() -> Filed:
        opened.append(Filed(tmp_path / "r"))
        return opened[-1]

    yield make
    for registry in opened:
        registry.close()


@pytest.fixture
def registry(open_registry):
    return open_registry()


def test_a_new_registry(registry):
    assert (registry.map.version, registry.map.nodes, registry.map.buckets) == (1, (), ())
    assert len(registry.map.cluster_id) == 16
    assert registry.map.owner(BucketEntry(id="b1", name="b"), "x") is None


def test_everything_survives_a_restart(open_registry):
    first = open_registry()
    first.say_each(1, 2)
    first.create_bucket("b", durability="relaxed")
    first.create_bucket("gone")
    first.say("t3", ("d3",))
    first.say("t5", ())
    first.mark_down("t2")
    first.apply(changes.remove_node("t5"))
    first.change_bucket("b", state="deleting")
    first.remove_bucket("gone", "gone-0")
    first.apply(changes.set_rebalance(True, None))
    first.apply(changes.set_rebalance(None, 5_000_000))
    before = first.file.state
    first.close()
    second = open_registry()
    assert second.file.state == before
    assert second.map.rebalance == RebalanceEntry(paused=True, rate_bytes_per_s=5_000_000)
    assert {node.id: node.state for node in second.map.nodes} == {"t1": "up", "t2": "down", "t3": "up"}
    assert [found.name for found in second.map.buckets] == ["b"]
    assert second.say("t4", ("d4",)) == 5


def test_a_bucket_that_was_being_checked_is_active_after_a_restart(open_registry):
    first = open_registry()
    first.create_bucket("b")
    first.change_bucket("b", state="checking")
    version = first.map.version
    first.close()
    for _ in range(2):
        again = open_registry()
        assert (again.map.bucket("b").state, again.map.version) == ("active", version + 1)
        again.close()


def test_the_number_of_a_node_that_is_gone_is_not_given_again(open_registry, monkeypatch):
    first = open_registry()
    assert first.say_each(1, 2, 3) == [1, 2, 3]
    for node in ("t3", "t1"):
        first.mark_down(node)
        first.apply(changes.remove_node(node))
    first.close()
    second = open_registry()
    assert second.say("t4", ("d4",)) == 4
    assert second.say("t3", ("d3",)) == 5
    # As operators did it, before there was anything for it.
    second.database.execute("DELETE FROM nodes")
    second.close()
    third = open_registry()
    assert third.map.nodes == ()
    assert third.say("t9", ("d9",)) == 6
    third.close()
    monkeypatch.setattr(changes, "NODE_NUMBER_MAX", 6)
    with pytest.raises(Conflict, match="no number"):
        open_registry().say("t10", ("d10",))


def test_a_registry_of_before_knows_its_numbers(open_registry):
    first = open_registry()
    first.say_each(1, 2)
    first.database.execute("DELETE FROM meta WHERE key = 'last_node_number'")
    first.close()
    assert open_registry().say("t3", ("d3",)) == 3


def test_a_registration_that_could_not_be_stored_uses_no_number_up(registry):
    registry.say()
    registry.database.execute("CREATE TRIGGER no BEFORE INSERT ON nodes BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.Error):
        registry.say("t2", ("d2",))
    registry.database.execute("DROP TRIGGER no")
    assert registry.say("t2", ("d2",)) == 2


def test_a_failed_transaction_changes_nothing(registry, monkeypatch):
    registry.say()
    before = registry.map
    registry.database.execute("CREATE TRIGGER no BEFORE INSERT ON buckets BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.Error):
        registry.create_bucket("b")
    assert registry.map == before
    registry.database.execute("DROP TRIGGER no")
    registry.create_bucket("b")
    assert registry.map.version == before.version + 1


@pytest.mark.parametrize("content", [b"no database at all" * 100, None])
def test_a_file_that_is_no_registry(tmp_path, content):
    path = tmp_path / "registry.sqlite"
    if content is None:
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 99")
        database.close()
    else:
        path.write_bytes(content)
    with pytest.raises(DiskRefused):
        RegistryFile(str(tmp_path))


def test_weights_of_disks_are_kept(open_registry):
    first = open_registry()
    first.say_each(1, 2, 3)
    first.create_bucket("b", copies=2)
    before = first.map
    first.close()
    second = open_registry()
    assert second.map == before
    second.apply(weigh_disks(["d2"], 0.5))
    spec = wanted_layout(second.map)
    assert spec == LayoutSpec(frozenset(("d1", "d2", "d3")), weights={"d2": 0.5})
    second.step(transitions.start_move(spec))
    placement = placement_of(second.map)
    second.close()
    third = open_registry()
    assert (third.map.nodes[1].disks[0].wanted_weight, placement_of(third.map)) == (0.5, placement)
    assert (placement.weight_in(1, "d2"), placement.weight_in(2, "d2")) == (1.0, 0.5)


def test_the_file_is_for_its_owner_only(registry, tmp_path):
    assert (tmp_path / "r" / "registry.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_change_that_changes_nothing_or_fails_writes_nothing(registry):
    registry.say()
    registry.database.execute("CREATE TRIGGER no BEFORE UPDATE ON meta BEGIN SELECT RAISE(ABORT, 'no'); END")
    before = registry.file.state
    assert registry.apply(lambda state: state) is before
    for mistake in (ZeroDivisionError, BucketNotFound):

        def fail(state, mistake=mistake):
            raise mistake("no")

        with pytest.raises(mistake):
            registry.apply(fail)
    with pytest.raises(ValueError):
        registry.apply(lambda state: msgspec.structs.replace(state, last_number=9))
    assert registry.file.state is before


# --- one at a time


def test_a_second_one_is_refused_and_told_who_is_there(registry, tmp_path):
    for _ in range(2):
        with pytest.raises(OperatorError) as caught:
            RegistryFile(str(tmp_path / "r"))
        assert f"process {os.getpid()} on {socket.gethostname()}." in caught.value.message
        assert "stop that one first" in caught.value.message
    registry.say()  # the first goes on
    (tmp_path / "link").symlink_to(tmp_path / "r")
    with pytest.raises(OperatorError):
        RegistryFile(str(tmp_path / "link"))
    registry.close()
    RegistryFile(str(tmp_path / "r")).close()


@pytest.mark.parametrize("left", [b"", b"\0" * 400, b"\xff" * 5000])
def test_what_a_crash_left_in_the_lock_says_nothing(tmp_path, left):
    (tmp_path / "registry.lock").write_bytes(left)
    registry = RegistryFile(str(tmp_path))
    with pytest.raises(OperatorError, match=f"process {os.getpid()} on"):
        RegistryFile(str(tmp_path))
    registry.close()


def test_who_is_refused_for_another_reason_holds_nothing(tmp_path):
    (tmp_path / "registry.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(DiskRefused):
        RegistryFile(str(tmp_path))
    (tmp_path / "registry.sqlite").unlink()
    RegistryFile(str(tmp_path)).close()


class Events(RuleBasedStateMachine):
    """Whatever happens in whatever order: versions only grow, placement changes only while there is no bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.registry = Filed(self.directory.name)
        self.version = 0
        self.placed: frozenset[str] = frozenset()
        self.held = False

    def teardown(self) -> None:
        self.registry.close()
        self.directory.cleanup()

    @rule(node=st.integers(1, 4), disks=st.sets(st.integers(1, 6), max_size=3), state=st.sampled_from(["up", "up", "failed"]))
    def register(self, node, disks, state):
        entries = tuple(DiskEntry(id=f"d{disk}", weight=1.0, state=state) for disk in sorted(disks))
        assert self.registry.say(f"t{node}", entries) == self.registry.map.node(f"t{node}").number

    @rule()
    def silence(self):
        self.registry.mark_down(*(node.id for node in self.registry.map.nodes))

    @rule(name=st.sampled_from("ab"), number=st.integers(0, 9))
    def create(self, name, number):
        assert self.registry.ensure_bucket(name, number).name == name

    @rule(name=st.sampled_from("ab"))
    def remove(self, name):
        bucket = self.registry.map.bucket(name)
        if bucket is not None:
            self.registry.remove_bucket(name, bucket.id)

    @rule()
    def restart(self):
        before = self.registry.map
        self.registry.close()
        self.registry = Filed(self.directory.name)
        assert self.registry.map.version == before.version
        assert self.registry.map.buckets == before.buckets

    @invariant()
    def placement_holds_still_while_there_are_buckets(self):
        cluster_map = self.registry.map
        assert cluster_map.version >= self.version
        numbers = [node.number for node in cluster_map.nodes]
        assert len(set(numbers)) == len(numbers)
        disks = [disk.id for node in cluster_map.nodes for disk in node.disks]
        assert len(set(disks)) == len(disks)
        placed = frozenset(cluster_map.in_use())
        if self.held and self.placed:
            assert placed == self.placed
        self.version, self.placed, self.held = cluster_map.version, placed, bool(cluster_map.buckets)


TestAnyOrderOfEvents = Events.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


def test_a_damaged_log_is_refused(open_registry, tmp_path):
    """Of a proxy that was killed. What is lost with the last commit alone cannot be seen here; targets know it."""
    registry = open_registry()
    for number in range(10):
        registry.apply(changes.create_bucket(BucketEntry(id=f"b-{number}", name=f"b{number}")))
    log = tmp_path / "r" / "registry.sqlite-wal"
    written = log.read_bytes()
    registry.close()
    flipped = bytearray(written)
    flipped[len(written) // 2] ^= 1
    log.write_bytes(bytes(flipped))
    for _ in range(2):
        with pytest.raises(DiskRefused, match=r"in its log is damaged.*recover"):
            open_registry()
    log.write_bytes(written)
    assert len(open_registry().map.buckets) == 10
    assert log.stat().st_size == 0, "it is begun anew"
