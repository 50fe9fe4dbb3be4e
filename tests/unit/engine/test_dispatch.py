"""Which worker gets which task, and who is blamed for a dead worker."""

from __future__ import annotations

import random

from dfc.engine.host import DEPTH, Dispatcher, Waiting


def dispatcher(workers: dict[str, str], *tasks: tuple[int, str | None]) -> Dispatcher:
    found = Dispatcher()
    found.set_workers(workers)
    for number, near in tasks:
        found.add(Waiting(number, b"", near))
    return found


def assigned(found: Dispatcher) -> dict[int, str]:
    return {waiting.number: waiting.worker for waiting in found.assign()}


def test_each_worker_gets_one_task_and_one_to_go_on_with():
    found = dispatcher({"a": "", "b": ""}, *((number, None) for number in range(9)))
    first = assigned(found)
    assert sorted(first) == [0, 1, 2, 3]
    assert sorted(first.values()) == ["a", "a", "b", "b"]
    assert assigned(found) == {}
    found.finished(0)
    assert assigned(found) == {4: first[0]}


def test_tasks_go_to_the_workers_of_their_node():
    found = dispatcher({"a": "t1", "b": "t2"}, (0, "t2"), (1, "t1"), (2, "t2"), (3, "t1"))
    assert assigned(found) == {0: "b", 1: "a", 2: "b", 3: "a"}


def test_an_idle_worker_takes_what_belongs_to_a_busy_one_but_does_not_hoard_it():
    found = dispatcher({"a": "t1", "b": "t2"}, *((number, "t1") for number in range(5)))
    given = assigned(found)
    assert sorted(given.values()) == ["a", "a", "b"]


def test_a_node_without_workers_is_anywhere():
    found = dispatcher({"a": "t1", "b": "t1"}, (0, "t9"), (1, None), (2, "t9"), (3, "t9"))
    assert sorted(assigned(found)) == [0, 1, 2, 3]


def test_no_worker_no_task_until_one_comes():
    found = dispatcher({}, (0, None))
    assert assigned(found) == {}
    assert not found.is_idle
    found.set_workers({"a": ""})
    assert assigned(found) == {0: "a"}
    found.finished(0)
    assert found.is_idle


def test_a_dead_worker_is_blamed_on_the_task_that_it_had_alone():
    found = dispatcher({"a": ""}, (0, None))
    assert assigned(found) == {0: "a"}
    assert found.lost(0)
    assert found.is_idle


def test_of_two_tasks_of_a_dead_worker_each_runs_again_alone():
    for order in ((0, 1), (1, 0)):
        found = dispatcher({"a": ""}, (0, None), (1, None), (2, None), (3, None))
        assert assigned(found) == {0: "a", 1: "a"}
        assert [found.lost(number) for number in order] == [False, False]
        found.set_workers({"a": "", "b": ""})  # an old list still names the dead one
        assert assigned(found) == {order[1]: "b"}, "nothing is given besides"
        assert assigned(found) == {}
        found.set_workers({"b": "", "c": ""})
        assert assigned(found) == {order[0]: "c"}
        found.finished(order[1])  # that one was innocent
        assert assigned(found) == {2: "b", 3: "b"}
        assert found.lost(order[0])


def test_a_suspect_does_not_go_behind_another_task():
    found = dispatcher({"a": "", "b": ""}, (0, None), (1, None), (2, None), (3, None))
    given = assigned(found)
    dead = [number for number, worker in given.items() if worker == "a"]
    assert [found.lost(number) for number in dead] == [False, False]
    assert assigned(found) == {}, "b is not empty"


def test_the_one_before_has_ended_so_the_other_is_to_blame():
    found = dispatcher({"a": ""}, (0, None), (1, None))
    assert assigned(found) == {0: "a", 1: "a"}
    found.finished(0)
    assert found.lost(1)


def test_cancelled_tasks_free_their_place():
    found = dispatcher({"a": ""}, (0, None), (1, None), (2, None))
    assigned(found)
    found.finished(1)
    assert assigned(found) == {2: "a"}
    found.finished(7)


def test_draining_names_every_task_once():
    found = dispatcher({"a": ""}, *((number, None) for number in range(5)))
    assigned(found)
    assert sorted(found.drain()) == [0, 1, 2, 3, 4]
    assert found.is_idle
    found.add(Waiting(9, b"", None))
    assert found.assign() == []  # the workers are forgotten with them


def test_every_task_ends_exactly_once_whatever_dies():
    for seed in range(50):
        dice = random.Random(seed)
        found = Dispatcher()
        alive = {f"w{n}": f"t{n % 3}" for n in range(dice.randint(1, 4))}
        found.set_workers(alive)
        for number in range(40):
            found.add(Waiting(number, b"", dice.choice((None, "t0", "t1", "t2", "t9"))))
        running: dict[int, str] = {}
        ended: list[int] = []
        for step in range(2000):
            for waiting in found.assign():
                assert waiting.number not in running
                running[waiting.number] = waiting.worker
            for worker in set(running.values()):
                assert list(running.values()).count(worker) <= DEPTH
            if not running:
                break
            victim = dice.choice(list(running))
            if dice.random() < 0.8:
                ended.append(victim)
                del running[victim]
                found.finished(victim)
                continue
            dead = running[victim]
            for number in [number for number, worker in running.items() if worker == dead]:
                del running[number]
                if found.lost(number):
                    ended.append(number)
            alive = {name: node for name, node in alive.items() if name != dead} | {f"n{step}": "t0"}
            found.set_workers(alive)
        assert sorted(ended) == list(range(40)), seed
