"""Slots that batches are written into: what is alive is never written over, and what is not is used again."""

from __future__ import annotations

import gc
import os
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from harness import open_files
from hypothesis import given, settings
from hypothesis import strategies as st

from dfc.inputs.epochs import memory
from dfc.inputs.epochs.memory import Reader, Writer, address, empty, outside, stack
from dfc.inputs.torch.memory import Sending, stack_tensors

SHAPE = (3, 50)
# Samples of a batch, what becomes of it, and which one of those that are held is dropped.
STEP = st.tuples(st.integers(1, 40), st.sampled_from(["keep", "slice", "drop", "late"]), st.integers(0, 100))


class Line:
    """A worker's writer and the reader of its batches, here in one process, with the pickles that go between."""

    def __init__(self, slots: int = 2) -> None:
        self.reader = Reader()
        self.writer = Writer(slots)
        self.writer.token = self.reader.token

    def send(self, value: int, count: int = 4, collate: Any = None) -> bytes:
        with self.writer.making():
            made = stack([np.full(SHAPE, value, np.int64) for _ in range(count)])
        batch = {"x": torch.from_numpy(made), "number": value, "cls": torch.full((count,), value)}
        del made
        return bytes(ForkingPickler.dumps(Sending(collate or (lambda batch: batch), self.writer)(batch)))

    def pass_on(self, value: int, count: int = 4, collate: Any = None) -> Any:
        return ForkingPickler.loads(self.send(value, count, collate))


@pytest.fixture
def line() -> Line:
    return Line()


def check(batch: Any) -> None:
    for field in ("x", "cls"):
        assert (batch[field] == batch["number"]).all(), field


def slots_of(line: Line) -> int:
    return len(line.reader.memories)


def test_one_slot_is_enough_for_who_keeps_nothing(line: Line) -> None:
    places = set()
    for value in range(20):
        batch = line.pass_on(value)
        check(batch)
        assert batch["x"].shape == (4, *SHAPE)
        assert batch["x"].untyped_storage().nbytes() == 4 * 150 * 8  # what torch.save would write
        places.add(batch["x"].data_ptr())
        del batch
    assert len(places) == slots_of(line) == 1


def test_any_part_of_a_batch_keeps_it(line: Line) -> None:
    kept = [
        line.pass_on(0)["x"][2:, 1, ::7],
        line.pass_on(1)["cls"].view(2, 2)[1],
        line.pass_on(2)["x"].numpy()[1:],  # there are two slots: this one and all that follow are copied
        line.pass_on(3)["x"].unbind()[0],
    ]
    for value in range(4, 12):
        check(line.pass_on(value))
    for value, part in enumerate(kept):
        assert (np.asarray(part) == value).all()
    assert slots_of(line) == 2
    del kept, part
    places = {line.pass_on(value)["x"].data_ptr() for value in range(5)}
    assert len(places) == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_random_holding(steps: list[tuple[int, str, int]]) -> None:
    line = Line(3)
    held: list[Any] = []
    sent: list[bytes] = []
    for number, (count, what, place) in enumerate(steps):
        sent.append(line.send(number, count))
        if what == "late":  # it waits in the queue
            continue
        for pickled in sent:
            batch = ForkingPickler.loads(pickled)
            check(batch)
            if what == "keep":
                held.append(batch)
            elif what == "slice":
                held.append({"x": batch["x"][count // 2 :], "cls": batch["cls"][:1], "number": batch["number"]})
        del batch
        sent.clear()
        if held and place % 2:
            del held[place % len(held)]
        for batch in held:
            check(batch)
        batch = None
    assert slots_of(line) <= 3


def test_what_a_worker_keeps_is_not_written_over(line: Line) -> None:
    kept = []

    def collate(batch: Any) -> Any:
        kept.append(batch["x"])
        return batch

    check(line.pass_on(7, collate=collate))
    for value in range(5):
        check(line.pass_on(value))
    assert (kept[0] == 7).all()


def test_a_batch_that_is_not_sent_frees_its_slot(line: Line) -> None:
    for value in range(5):
        with line.writer.making():
            array = empty(SHAPE, np.float32)
            array[:] = value
        line.writer.done()
        del array
    assert len(line.writer._slots) == 1


def test_nothing_is_placed_for_who_does_not_make_batches_here(line: Line) -> None:
    """As in a loader of torch's that was given the `collate_fn` of ours."""
    tensor = torch.ones(3)
    assert Sending(lambda batch: batch, line.writer)([tensor])[0] is tensor
    assert line.writer._slots == []


def test_slots_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOADER_SLOT_BYTES", 10_000)
    line = Line()
    small = line.pass_on(1)
    check(line.pass_on(2, 100))  # too large, by torch's own way
    large = [line.pass_on(value, 100) for value in range(3, 9)]
    for batch in (small, *large):
        check(batch)
    assert slots_of(line) == 2
    del large, batch
    places = {line.pass_on(value, 100)["x"].data_ptr() for value in range(5)}
    assert len(places) == 1
    check(small)


def test_no_more_files(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    for name in ("memfd_create", "ftruncate"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, refuse)
            check(line.pass_on(1))
            assert slots_of(line) == 0
    check(line.pass_on(2))
    assert slots_of(line) == 1


def files_of_batches() -> int:
    """How many are open here. Libraries open others of their own, once, when they are first used."""
    return sum(name.startswith("/memfd:dfc-batch") for name in open_files(os.getpid()))


def test_files_are_closed() -> None:
    gc.collect()
    before = files_of_batches()
    line = Line(4)
    kept = [line.pass_on(value) for value in range(4)]
    assert files_of_batches() >= before + 4
    del line
    gc.collect()
    for batch in kept:
        check(batch)
    del kept, batch
    gc.collect()
    assert files_of_batches() == before


def test_received_after_the_end(line: Line) -> None:
    check(line.pass_on(1))
    first, again = Line().send(2), line.send(3)  # with its file, and a slot that the reader has
    line.reader.memories.clear()
    line.reader = Reader()
    check(ForkingPickler.loads(first))
    with pytest.raises(RuntimeError, match="after its iteration"):
        ForkingPickler.loads(again)


def test_received_and_freed_in_other_threads(line: Line) -> None:
    """As torch's thread that pins memory does."""
    found: list[Any] = []
    for value in range(10):
        pickled = line.send(value)
        for action in (lambda: found.append(ForkingPickler.loads(pickled)), lambda: check(found[0]), found.clear):  # noqa: B023
            thread = threading.Thread(target=action)
            thread.start()
            thread.join()
    assert slots_of(line) == 1


def test_what_a_forked_process_has_stays(line: Line) -> None:
    batch = line.pass_on(5)
    other = line.pass_on(6)
    del other  # a slot that was free then is used again
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            os.read(to_child[0], 1)
            good = (batch["x"] == 5).all() and (batch["cls"] == 5).all()
            del batch  # does not free the slot of the parent
            os.write(to_parent[1], b"y" if good else b"n")
        finally:
            os._exit(0)
    place = batch["x"].data_ptr()
    del batch
    kept = [line.pass_on(value) for value in range(10, 20)]
    os.write(to_child[1], b"x")
    assert os.read(to_parent[0], 1) == b"y"
    os.waitpid(child, 0)
    for number, again in enumerate(kept, 10):
        check(again)
        assert again["number"] == number
        assert again["x"].data_ptr() != place
    for end in (*to_child, *to_parent):
        os.close(end)


def test_a_forked_process_frees_nothing(line: Line) -> None:
    batch = line.pass_on(5)
    child = os.fork()
    if child == 0:  # pragma: no cover
        del batch
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    kept = [line.pass_on(value) for value in range(5)]
    check(batch)
    assert len({each["x"].data_ptr() for each in (batch, *kept)}) == 6


def test_a_process_that_a_worker_forks_frees_nothing(line: Line) -> None:
    def collate(batch: Any) -> Any:
        child = os.fork()
        if child == 0:  # pragma: no cover
            batch.clear()
            line.writer.done()
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        return batch

    batch = line.pass_on(5, collate=collate)
    for value in range(5):
        check(line.pass_on(value))
    check(batch)


# What is placed where.


def test_arrays_that_lie_one_behind_the_other_are_stacked_where_they_are(line: Line) -> None:
    with line.writer.making():
        arrays = [empty((5, 7, 3), np.uint8) for _ in range(4)]
        for number, array in enumerate(arrays):
            array[:] = number
        stacked = stack(arrays)
        turned = stack(arrays[::-1])
        gap = stack([arrays[0], arrays[2]])
        twice = stack([arrays[0], arrays[0]])
        other = empty((2, 2), np.float64)
    assert address(stacked) == address(arrays[0])
    assert all(address(each) != address(stacked) for each in (turned, gap, twice))
    assert address(other) % 64 == 0
    for found, wanted in ((stacked, [0, 1, 2, 3]), (turned, [3, 2, 1, 0]), (gap, [0, 2]), (twice, [0, 0])):
        assert found.flags.c_contiguous
        assert found[:, 4, 6, 2].tolist() == found[:, 0, 0, 0].tolist() == wanted


@pytest.mark.parametrize("dtype", ["u1", ">i4", "f2", "c16", "?", "M8[s]", "U3", "S2", "V4"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3)])
def test_stacking_is_that_of_numpy(line: Line, dtype: str, shape: tuple[int, ...]) -> None:
    arrays = [np.frombuffer(os.urandom(4096).translate(bytes(range(128)) * 2), "u1")[:24].astype("u1") % 2 for _ in range(3)]
    values = [np.resize(array, shape).astype(dtype) if dtype != "V4" else np.zeros(shape, dtype) for array in arrays]
    wanted = np.stack(values)
    with line.writer.making():
        found = stack(values)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()
    with line.writer.making():  # and where they lie in the slot already
        placed = [empty(shape, dtype) for _ in values]
        for array, value in zip(placed, values, strict=True):
            array[...] = value
        found = stack(placed)
    assert found.astype(wanted.dtype).tobytes() == wanted.tobytes()


def test_mixed_types_and_objects(line: Line) -> None:
    with line.writer.making():
        assert stack([np.zeros(2, np.uint8), np.ones(2, np.float32)]).dtype == np.float32
        assert empty((2,), object).dtype == object
        assert line.writer.use is not None
        assert not line.writer.use.has(address(outside(empty, (2,), np.uint8)), 2)


def test_all_kinds_of_tensors_arrive(line: Line) -> None:
    tensors: dict[str, Any] = {
        "bool": torch.tensor([True, False]),
        "bfloat16": torch.arange(10, dtype=torch.bfloat16).reshape(2, 5),
        "complex": torch.tensor([1 + 2j]),
        "scalar": torch.tensor(3.5),
        "nothing": torch.zeros((0, 3)),
        "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.arange(3).expand(4, 3),
        "part": torch.arange(100).reshape(10, 10)[:, 2:4],
        "transposed": torch.arange(6).reshape(2, 3).T,
        "conjugated": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    sizes = [torch.full((n, 2), n) for n in range(1, 5)]
    pair = torch.return_types.max((torch.ones(1), torch.zeros(1)))  # a tuple that is no namedtuple

    def collate(batch: Any) -> Any:
        return {**tensors, "sizes": sizes, "tuple": (batch["x"].float() / 2, "text"), "pair": pair, "turned": batch["x"].mT}

    found = line.pass_on(6, collate=collate)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name
    assert found["channels_last"].is_contiguous(memory_format=torch.channels_last)
    assert isinstance(found["parameter"], torch.nn.Parameter)
    assert [each.tolist() for each in found["sizes"]] == [each.tolist() for each in sizes]
    assert (found["tuple"][0] == 3).all()
    assert found["tuple"][1] == "text"
    assert found["turned"].stride() == torch.zeros(4, *SHAPE).mT.stride()
    assert (found["turned"] == 6).all()
    assert found["pair"][0] == 1


def test_tensors_are_stacked_in_the_slot(line: Line) -> None:
    with line.writer.making():
        tensors = [torch.from_numpy(empty((2, 3), np.float32)).fill_(n) for n in range(3)]
        stacked = stack_tensors(tensors)
        assert stacked.data_ptr() == tensors[0].data_ptr()
        assert stacked[:, 1, 2].tolist() == [0, 1, 2]
        rest = stack_tensors([torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)])
        assert rest.tolist() == [[1, 1], [0, 0]]
        mixed = stack_tensors([torch.ones(2), torch.zeros(2, dtype=torch.int64)])
        assert mixed.dtype == torch.float32
        graded = stack_tensors([torch.ones(2, requires_grad=True)])
        assert graded.requires_grad
