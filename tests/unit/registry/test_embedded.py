"""The embedded registry: one order of versions, who may enter placement, silence, buckets, restarts."""

from __future__ import annotations

import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dfc.errors import BucketConflict, BucketDeleting, BucketNotFound, Conflict, DiskRefused
from dfc.placement import map as map_module
from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, Labels
from dfc.registry import embedded
from dfc.registry.embedded import EmbeddedRegistry, Registration


@pytest.fixture
def now(monkeypatch):
    """The monotonic clock of heartbeats, moved by hand."""

    class Now:
        seconds = 1000.0

    monkeypatch.setattr(embedded.time, "monotonic", lambda: Now.seconds)
    return Now


@pytest.fixture
def open_registry(tmp_path):
    """Opens the registry of the test's directory, again and again."""
    opened = []

    def make() -> EmbeddedRegistry:
        opened.append(EmbeddedRegistry(str(tmp_path / "r"), wall_s=lambda: 1_700_000_000.0))
        return opened[-1]

    yield make
    for registry in opened:
        registry.close()


@pytest.fixture
def registry(open_registry):
    return open_registry()


def say(registry, node="t1", disks=("d1",), **changes):
    """A registration of a target with disks; `changes` replace fields."""
    entries = tuple(disk if isinstance(disk, DiskEntry) else DiskEntry(id=disk, weight=1.0, capacity=100) for disk in disks)
    values = {
        "node_id": node,
        "role": "target",
        "url": f"http://{node}:1",
        "advertise_url": f"http://{node}.example:1",
        "cluster_id": registry.map.cluster_id,
        "disks": entries,
        **changes,
    }
    return registry.register(Registration(**values))


def states(registry):
    return {node.id: node.state for node in registry.map.nodes}


def disk_states(registry):
    return {disk.id: disk.state for node in registry.map.nodes for disk in node.disks}


BUCKET = BucketEntry(id="b1", name="b")


def owners(registry):
    """The disks that take part in placement."""
    return {registry.map.owner(BUCKET, str(number)).disk.id for number in range(300)}


# --- nodes


def test_a_new_registry(registry):
    assert (registry.map.version, registry.map.nodes, registry.map.buckets) == (1, (), ())
    assert len(registry.map.cluster_id) == 16
    assert registry.map.owner(BUCKET, "x") is None


def test_the_first_targets_enter_placement_at_once(registry):
    answers = [say(registry, f"t{number}", (f"d{number}a", f"d{number}b")) for number in range(3)]
    assert [answer.node_number for answer in answers] == [1, 2, 3]
    assert answers[0].map is not None
    assert registry.map.version == 4
    assert states(registry) == {"t0": "up", "t1": "up", "t2": "up"}
    assert owners(registry) == {"d0a", "d0b", "d1a", "d1b", "d2a", "d2b"}
    node = registry.map.node("t1")
    assert (node.url, node.advertise_url, node.role) == ("http://t1:1", "http://t1.example:1", "target")


def test_heartbeats_change_the_use_of_disks_and_no_version(registry):
    say(registry)
    version = registry.map.version
    again = say(registry, disks=(DiskEntry(id="d1", weight=1.0, capacity=200, used=50, objects=7),), map_version=version)
    assert again.map is None
    assert registry.map.version == version
    (disk,) = registry.map.node("t1").disks
    assert (disk.capacity, disk.used, disk.objects) == (200, 50, 7)
    assert registry.map.node("t1").last_heartbeat == "2023-11-14T22:13:20.000Z"
    assert say(registry, map_version=version - 1).map.version == version


def test_heartbeats_rebuild_no_index_of_the_map(registry, monkeypatch):
    for number in range(3):
        say(registry, f"t{number}", (f"d{number}",))
    registry.create_bucket("b")
    built = []
    monkeypatch.setattr(map_module, "Layout", lambda disks: built.append(disks))
    before = registry.map
    for used in range(50):
        say(registry, "t1", (DiskEntry(id="d1", weight=1.0, capacity=100, used=used, objects=used),))
    assert built == []
    assert registry.map.version == before.version
    assert registry.map.node("t1").disks[0].used == 49
    assert [registry.map.owner(BUCKET, str(n)).disk.id for n in range(20)] == [
        before.owner(BUCKET, str(n)).disk.id for n in range(20)
    ]
    assert registry.map.bucket("b") == before.bucket("b")
    assert before.node("t1").disks[0].used == 0  # a reader keeps the map that it took
    say(registry, "t1", (DiskEntry(id="d1", weight=1.0, state="failed"),))
    assert len(built) == 1  # that is a change


def test_weights_are_fixed_when_a_disk_joins(registry):
    say(registry, disks=(DiskEntry(id="d1", weight=2.0),))
    say(registry, disks=(DiskEntry(id="d1", weight=9.0),), url="http://moved:1")
    assert registry.map.node("t1").disks[0].weight == 2.0


def test_labels_are_those_of_the_last_registration(registry):
    say(registry, labels=Labels(zone="row-1", host="h1"))
    assert registry.map.node("t1").domain == "zone row-1"
    version = registry.map.version
    say(registry, labels=Labels(zone="row-1", host="h1"))
    assert registry.map.version == version
    say(registry, labels=Labels(host="h2"))
    assert (registry.map.version, registry.map.node("t1").domain) == (version + 1, "host h2")


def test_the_group_of_a_disk_is_the_node_with_which_it_joined(registry):
    """Whatever the node says of it, and wherever the disk goes."""
    say(registry, "t1", (DiskEntry(id="d1", weight=1.0, group="mine"), "d2"))
    say(registry, "t2", ("d3",))
    registry.create_bucket("b")
    homes = [registry.map.owner(BUCKET, str(number)).disk.id for number in range(100)]
    say(registry, "t2", ("d3", "d2"))
    say(registry, "t9", (DiskEntry(id="d1", weight=5.0, group="t9"),))
    disks = {disk.id: (node.id, disk.group) for node in registry.map.nodes for disk in node.disks}
    assert disks == {"d1": ("t9", "t1"), "d2": ("t2", "t1"), "d3": ("t2", "t2")}
    assert [registry.map.owner(BUCKET, str(number)).disk.id for number in range(100)] == homes


def test_a_node_that_moves_keeps_its_number(registry):
    number = say(registry).node_number
    version = registry.map.version
    assert say(registry, url="http://new:1").node_number == number
    assert registry.map.version == version + 1
    assert registry.map.node("t1").url == "http://new:1"


def test_disks_of_another_cluster_are_refused(registry):
    with pytest.raises(Conflict):
        say(registry, cluster_id="other")
    assert registry.map.nodes == ()


def test_a_failed_disk_stays_in_placement(registry):
    """Its objects are unavailable, not placed elsewhere."""
    say(registry, disks=("d1", "d2"))
    registry.create_bucket("b")
    say(registry, disks=("d1", DiskEntry(id="d2", weight=1.0, state="failed")))
    assert disk_states(registry) == {"d1": "up", "d2": "failed"}
    assert owners(registry) == {"d1", "d2"}
    say(registry, disks=("d1",))  # not even mounted
    assert disk_states(registry) == {"d1": "up", "d2": "failed"}
    say(registry, disks=("d1", "d2"))
    assert disk_states(registry) == {"d1": "up", "d2": "up"}


# --- joining a cluster that may hold objects


def test_a_target_that_comes_when_buckets_exist_stays_outside(registry):
    say(registry, "t1", ("d1",))
    registry.create_bucket("b")
    say(registry, "t2", ("d2",))
    assert states(registry) == {"t1": "up", "t2": "joining"}
    assert owners(registry) == {"d1"}
    say(registry, "t2", ("d2",))  # its heartbeats change nothing of that
    say(registry, "t2", ("d2",), url="http://new:1")
    assert states(registry)["t2"] == "joining"
    assert owners(registry) == {"d1"}


def test_a_disk_that_is_added_when_buckets_exist_stays_outside(registry):
    say(registry, "t1", ("d1",))
    registry.create_bucket("b")
    say(registry, "t1", ("d1", "d2"))
    assert states(registry) == {"t1": "up"}
    assert disk_states(registry) == {"d1": "up", "d2": "joining"}
    assert owners(registry) == {"d1"}
    version = registry.map.version
    say(registry, "t1", ("d1", "d2"))
    assert registry.map.version == version


def test_without_buckets_all_may_enter(registry):
    say(registry, "t1", ("d1",))
    registry.create_bucket("b")
    say(registry, "t2", ("d2",))
    registry.remove_bucket("b", registry.map.bucket("b").id)
    say(registry, "t2", ("d2",), url="http://new:1")
    assert states(registry) == {"t1": "up", "t2": "up"}
    assert owners(registry) == {"d1", "d2"}


def test_disks_that_move_to_another_node_stay_in_placement(registry):
    """The same disks under a new node id: what they hold is found at the new address."""
    say(registry, "t1", ("d1", "d2"))
    registry.create_bucket("b")
    say(registry, "t9", ("d1", "d2"))
    assert states(registry)["t9"] == "up"
    assert owners(registry) == {"d1", "d2"}
    assert registry.map.owner(BUCKET, "x").node.id == "t9"
    assert registry.map.node("t1").disks == ()
    assert [node.id for node in registry.map.targets()] == ["t9"]  # the old id is nobody's whose silence matters


def test_joining_disks_that_move_to_another_node_stay_outside(registry):
    say(registry, "t1", ("d1",))
    registry.create_bucket("b")
    say(registry, "t2", ("d2",))
    say(registry, "t1", ("d1", "d3"))
    say(registry, "t9", ("d2", "d3"))
    assert states(registry)["t9"] == "joining"
    assert owners(registry) == {"d1"}
    say(registry, "t9", ("d1", "d2", "d3"))
    assert states(registry)["t9"] == "up"
    assert owners(registry) == {"d1"}


def test_a_joining_disk_that_is_missing_stays_outside(registry):
    say(registry, "t1", ("d1",))
    registry.create_bucket("b")
    say(registry, "t1", ("d1", "d2"))
    say(registry, "t1", ("d1",), url="http://new:1")
    assert owners(registry) == {"d1"}


# --- silence


def test_a_silent_target_is_down_and_comes_back(registry, now):
    say(registry, "t1", ("d1",))
    say(registry, "t2", ("d2",))
    registry.create_bucket("b")
    version = registry.map.version
    now.seconds += 3
    say(registry, "t1", ("d1",))
    assert registry.mark_silent_nodes(4) == []
    now.seconds += 2
    assert registry.mark_silent_nodes(4) == ["t2"]
    assert registry.mark_silent_nodes(4) == []
    assert registry.map.version == version + 1
    assert states(registry) == {"t1": "up", "t2": "down"}
    assert owners(registry) == {"d1", "d2"}  # its objects answer 503, they do not move
    answer = say(registry, "t2", ("d2",), map_version=version)
    assert states(registry) == {"t1": "up", "t2": "up"}
    assert answer.map.version == registry.map.version == version + 2


def test_a_joining_target_does_not_go_down(registry, now):
    say(registry, "t1", ("d1",))
    registry.create_bucket("b")
    say(registry, "t2", ("d2",))
    now.seconds += 100
    assert registry.mark_silent_nodes(4) == ["t1"]
    assert states(registry) == {"t1": "down", "t2": "joining"}


# --- buckets


def test_buckets(registry):
    made, new = registry.create_bucket("b", durability="relaxed")
    assert new
    assert (made.name, made.copies, made.durability, made.state) == ("b", 1, "relaxed", "active")
    assert made.created == "2023-11-14T22:13:20.000Z"
    version = registry.map.version
    assert registry.create_bucket("b", durability="relaxed") == (made, False)
    assert registry.ensure_bucket("b") == made
    assert registry.map.version == version
    with pytest.raises(BucketConflict):
        registry.create_bucket("b", durability="fsync")
    assert registry.change_bucket("b", durability="fsync").durability == "fsync"
    assert registry.change_bucket("b", durability="fsync") == registry.map.bucket("b")
    assert registry.map.version == version + 1
    registry.create_bucket("a")
    assert [bucket.name for bucket in registry.map.buckets] == ["a", "b"]
    with pytest.raises(BucketNotFound):
        registry.change_bucket("c", durability="fsync")


def test_a_bucket_made_anew_has_another_id(registry):
    first = registry.ensure_bucket("b")
    registry.change_bucket("b", state="deleting")
    with pytest.raises(BucketDeleting):
        registry.create_bucket("b")
    assert registry.ensure_bucket("b").state == "deleting"
    registry.remove_bucket("b", first.id)
    assert registry.map.bucket("b") is None
    second = registry.ensure_bucket("b")
    assert second.id != first.id
    registry.remove_bucket("b", first.id)  # a late removal of the old one
    registry.remove_bucket("c", first.id)
    assert registry.map.bucket("b") == second


def test_creators_at_once_make_one_bucket(registry):
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: registry.create_bucket("b"), range(20)))
    assert len({bucket.id for bucket, _ in made}) == 1
    assert [new for _, new in made].count(True) == 1
    assert registry.map.version == 2


# --- the file


def test_everything_survives_a_restart(open_registry, now):
    first = open_registry()
    say(first, "t1", ("d1",))
    say(first, "t2", ("d2",))
    first.create_bucket("b", durability="relaxed")
    say(first, "t3", ("d3",))
    now.seconds += 10
    say(first, "t1", ("d1",))
    first.mark_silent_nodes(4)
    before = first.map
    first.close()
    second = open_registry()
    assert (second.map.cluster_id, second.map.version) == (before.cluster_id, before.version)
    assert second.map.buckets == before.buckets
    assert states(second) == {"t1": "up", "t2": "down", "t3": "joining"}
    assert owners(second) == {"d1", "d2"}
    # Targets have their time again before they are called silent.
    assert second.mark_silent_nodes(4) == []
    now.seconds += 5
    assert second.mark_silent_nodes(4) == ["t1"]
    assert say(second, "t4", ("d4",)).node_number == 4


def remove(registry, node):
    """As an operator does it: there is no command."""
    registry._database.execute("DELETE FROM nodes WHERE id = ?", (node,))


def test_the_number_of_a_node_that_is_gone_is_not_given_again(open_registry):
    """Objects that it has stored keep their versions: an equal one of another node would have no order with them."""
    first = open_registry()
    assert [say(first, f"t{number}", (f"d{number}",)).node_number for number in (1, 2, 3)] == [1, 2, 3]
    remove(first, "t3")
    remove(first, "t1")
    first.close()
    second = open_registry()
    assert say(second, "t4", ("d4",)).node_number == 4
    assert say(second, "t3", ("d3",)).node_number == 5
    for node in ("t2", "t3", "t4"):
        remove(second, node)
    second.close()
    third = open_registry()
    assert third.map.nodes == ()
    assert say(third, "t9", ("d9",)).node_number == 6
    third.close()


def test_a_registry_of_before_knows_its_numbers(open_registry):
    first = open_registry()
    say(first, "t1", ("d1",))
    say(first, "t2", ("d2",))
    first._database.execute("DELETE FROM meta WHERE key = 'last_node_number'")
    first.close()
    assert say(open_registry(), "t3", ("d3",)).node_number == 3


def test_when_all_numbers_are_given(open_registry, monkeypatch):
    monkeypatch.setattr(embedded, "NODE_NUMBER_MAX", 3)
    registry = open_registry()
    for number in (1, 2, 3):
        say(registry, f"t{number}", (f"d{number}",))
    before = registry.map
    for _ in range(2):
        with pytest.raises(Conflict, match="no number"):
            say(registry, "t4", ("d4",))
    assert registry.map == before
    assert say(registry, "t2", ("d2",), url="http://elsewhere:1").node_number == 2
    registry.create_bucket("b")
    registry.close()
    with pytest.raises(Conflict, match="no number"):
        say(open_registry(), "t4", ("d4",))


def test_a_registration_that_could_not_be_stored_uses_no_number_up(registry):
    say(registry)
    registry._database.execute("CREATE TRIGGER no BEFORE INSERT ON nodes BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.Error):
        say(registry, "t2", ("d2",))
    registry._database.execute("DROP TRIGGER no")
    assert say(registry, "t2", ("d2",)).node_number == 2


def test_a_failed_transaction_changes_nothing(registry, monkeypatch):
    say(registry)
    before = registry.map
    registry._database.execute("CREATE TRIGGER no BEFORE INSERT ON buckets BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(sqlite3.Error):
        registry.create_bucket("b")
    assert registry.map == before
    registry._database.execute("DROP TRIGGER no")
    assert registry.create_bucket("b")[1]
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
        EmbeddedRegistry(str(tmp_path))


def test_the_file_is_for_its_owner_only(registry, tmp_path):
    assert (tmp_path / "r" / "registry.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_map_reads_itself_back(registry):
    say(registry)
    registry.create_bucket("b")
    assert ClusterMap.decode(registry.map.encode()) == registry.map


# --- any order of events


class Events(RuleBasedStateMachine):
    """Whatever happens in whatever order: versions only grow, placement changes only while there is no bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.registry = EmbeddedRegistry(self.directory.name)
        self.version = 0
        self.placed: frozenset[str] = frozenset()
        self.held = False

    def teardown(self) -> None:
        self.registry.close()
        self.directory.cleanup()

    @rule(node=st.integers(1, 4), disks=st.sets(st.integers(1, 6), max_size=3), state=st.sampled_from(["up", "up", "failed"]))
    def register(self, node, disks, state):
        entries = tuple(DiskEntry(id=f"d{disk}", weight=1.0, state=state) for disk in sorted(disks))
        answer = say(self.registry, f"t{node}", entries)
        assert self.registry.map.node(f"t{node}").number == answer.node_number

    @rule()
    def silence(self):
        self.registry.mark_silent_nodes(-1)

    @rule(name=st.sampled_from("ab"))
    def create(self, name):
        assert self.registry.ensure_bucket(name).name == name

    @rule(name=st.sampled_from("ab"))
    def remove(self, name):
        bucket = self.registry.map.bucket(name)
        if bucket is not None:
            self.registry.remove_bucket(name, bucket.id)

    @rule()
    def restart(self):
        before = self.registry.map
        self.registry.close()
        self.registry = EmbeddedRegistry(self.directory.name)
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
        placed = frozenset(disk.id for node in cluster_map.targets() for disk in node.disks if disk.state != "joining")
        if self.held:
            assert placed == self.placed
        self.version, self.placed, self.held = cluster_map.version, placed, bool(cluster_map.buckets)


TestAnyOrderOfEvents = Events.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
