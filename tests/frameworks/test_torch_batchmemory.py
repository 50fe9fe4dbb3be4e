"""Batches of real workers in memory that is used again: whatever is held, by whomever, stays what it was."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import go_on_without, wait_for
from job_shards import tar_of
from torch.utils import data

from dfc.inputs.images import encode_image, encode_npy
from dfc.inputs.loader import Loader
from dfc.inputs.torch import DataLoader, ShardDataset

# Two workers are more than some machines have processors.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SHARDS, SAMPLES, BATCH, WORKERS = 4, 60, 6, 2
BATCHES = SHARDS * SAMPLES // BATCH  # of an epoch
SIDE = 60  # arrays of 14 kB, batches of 86 kB


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """240 samples whose class is their number; all elements of their arrays are that too."""
    folder = tmp_path_factory.mktemp("arrays")
    for shard in range(SHARDS):
        members = []
        for number in range(shard * SAMPLES, (shard + 1) * SAMPLES):
            array = encode_npy(np.full((SIDE, SIDE), number, np.float32))
            members += [(f"{number:03d}.npy", array), (f"{number:03d}.cls", str(number).encode())]
        (folder / f"s-{shard}.tar").write_bytes(tar_of(members))
    return f"{folder}/s-{{0..{SHARDS - 1}}}.tar"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Shards of JPEG files: of one size, of several sizes, and some that are broken or PNG."""
    folder = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(1)

    def write(name: str, sizes: list[tuple[int, int]], kinds: list[str]) -> str:
        members = []
        for number in range(36):
            height, width = sizes[number % len(sizes)]
            kind = kinds[number % len(kinds)]
            file = b"\xff\xd8 no picture"
            if kind != "broken":
                file = encode_image(chance.integers(0, 256, (height, width, 3), np.uint8), kind)
            members += [(f"{number:03d}.jpg", file), (f"{number:03d}.cls", str(number).encode())]
        (folder / f"{name}.tar").write_bytes(tar_of(members))
        return f"{folder}/{name}.tar"

    return {
        "alike": write("alike", [(40, 50)], ["jpg"]),
        "unlike": write("unlike", [(40, 50), (30, 20), (41, 43)], ["jpg"]),
        "mixed": write("mixed", [(40, 50)], ["jpg", "jpg", "jpg", "png", "broken"]),
    }


def load(shards: str, batches: int = BATCHES, *, workers: int = WORKERS, **options: Any) -> DataLoader:
    dataset = ShardDataset(shards, BATCH, epoch_batches=batches, shuffle=8, seed=3)
    return DataLoader(dataset, workers, **options)


def check(batch: Any) -> None:
    assert batch["npy"].shape == (len(batch["cls"]), SIDE, SIDE)
    assert (batch["npy"] == batch["cls"].reshape(-1, 1, 1)).all()
    assert batch["cls"].tolist() == [int(key) for key in batch["__key__"]]


def end(loader: Any) -> None:
    """Persistent workers."""
    loader._iterator._shutdown_workers()


def in_slot(tensor: torch.Tensor) -> bool:
    return not tensor.is_shared()  # torch's own way makes shared tensors


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_what_is_held_stays_what_it_was(shards: str, context: str) -> None:
    """A slice, the whole, or nothing of each batch, dropped in any order, over three epochs with the same workers."""
    chance = random.Random(5)
    loader = load(shards, multiprocessing_context=context, persistent_workers=True)
    held: list[Any] = []
    places, count = set(), 0
    for _ in range(3):
        for batch in loader:
            count += 1
            check(batch)
            if in_slot(batch["npy"]):
                places.add(batch["npy"].data_ptr())
            if chance.random() < 0.4:
                first = chance.randrange(BATCH)
                held.append({name: field[first:] for name, field in batch.items()})
            while held and chance.random() < 0.5:
                del held[chance.randrange(len(held))]
            for part in held:
                check(part)
    assert count == 3 * BATCHES
    assert 1 <= len(places) <= WORKERS * 4
    end(loader)


def test_all_batches_of_an_epoch_at_once(shards: str) -> None:
    found = list(load(shards))
    for batch in found:
        check(batch)
    shared = [in_slot(batch["npy"]) for batch in found]
    assert sum(shared) == WORKERS * 4  # as many slots as there are; the others were copied
    assert len({batch["npy"].data_ptr() for batch in found}) == BATCHES
    random.Random(1).shuffle(found)
    while found:
        del found[-1]
        for batch in found:
            check(batch)


def test_memory_is_used_again(shards: str) -> None:
    places = [batch["npy"].data_ptr() for batch in load(shards)]
    assert len(places) == BATCHES
    assert len(set(places)) <= WORKERS * 4
    assert all(not in_slot(batch["npy"]) for batch in load(shards, reuse_memory=False))


@pytest.mark.parametrize("options", [{"prefetch_factor": 1}, {"prefetch_factor": 5, "in_order": False}, {"workers": 1}])
def test_options_of_torch(shards: str, options: dict[str, Any]) -> None:
    previous = None
    found = []
    for batch in load(shards, **options):
        check(batch)
        if previous is not None:
            check(previous)
        # Who holds two batches never has them copied; but where workers need not keep step, the one that is left at the end
        # is asked for the batches of all at once.
        assert in_slot(batch["npy"]) or "in_order" in options
        previous = batch
        found += batch["cls"].tolist()
    assert sorted(found) == sorted([*range(240)]) or "workers" not in options


def test_iterations_that_are_left(shards: str) -> None:
    """Early, with and without something held; what they had open is closed."""
    loader = load(shards)
    next(iter(loader))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    for length in (1, 7, 3):
        for number, batch in enumerate(loader):
            check(batch)
            if number == length:
                kept.append(batch["npy"][1:3])
                break
    wanted = [part.clone() for part in kept]
    for batch in loader:
        check(batch)
    for part, same in zip(kept, wanted, strict=True):
        assert torch.equal(part, same)
    del kept, part, batch
    gc.collect()
    # Threads of multiprocessing's queues close their own ends, soon after nobody has the queues any more.
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before, "the descriptors of the iterations to be closed")


def test_persistent_workers_that_are_left_early(shards: str) -> None:
    loader = load(shards, persistent_workers=True)
    kept = []
    for length in (5, 0, 9, 2):
        for number, batch in enumerate(loader):
            check(batch)
            if number == length:
                kept.append(batch)
                break
    for batch in (*loader, *kept):
        check(batch)
    end(loader)


def test_two_loaders_in_turn(shards: str) -> None:
    """Also of one dataset, whose second loader is then made beside the first one's workers."""
    kept: list[Any] = []
    for first, second in zip(load(shards), load(shards), strict=True):
        check(first)
        check(second)
        kept = [*kept[-3:], first, second]
        for batch in kept:
            check(batch)


def test_a_worker_that_is_killed(shards: str) -> None:
    loader = load(shards)
    before = set(multiprocessing.active_children())  # those of other tests may be ending
    batches = iter(loader)
    kept = [next(batches) for _ in range(3)]
    first = kept[0]["npy"].clone()
    victim = next(process for process in multiprocessing.active_children() if process not in before)
    with pytest.raises(RuntimeError, match="worker"):
        go_on_without(victim.pid, batches)
    for batch in kept:
        check(batch)
    for batch in loader:
        check(batch)
    assert torch.equal(kept[0]["npy"], first)


def test_batches_are_as_good_as_others(shards: str, tmp_path: Path) -> None:
    """They can be changed, saved, sent to other processes and grow a gradient."""
    batches = iter(load(shards))
    batch = next(batches)
    wanted = batch["npy"].clone()
    torch.save(batch, tmp_path / "batch.pt")
    assert (tmp_path / "batch.pt").stat().st_size < wanted.nbytes + 10_000
    assert torch.equal(torch.load(tmp_path / "batch.pt")["npy"], wanted)
    batch["npy"].mul_(2).add_(1)
    moved = batch["npy"].share_memory_()
    weights = torch.ones(SIDE, requires_grad=True)
    loss = (next(batches)["npy"] @ weights).sum()  # autograd holds the batch
    for other in batches:
        check(other)
    loss.backward()
    assert weights.grad is not None
    assert weights.grad.sum() > 0
    assert torch.equal(moved, wanted * 2 + 1)


class Halved:
    """A `collate_fn`, which spawned workers are sent."""

    def __call__(self, batch: Any) -> Any:
        return batch["npy"].half() / 2, batch["cls"], batch["npy"][::2], {"key": batch["__key__"], "list": [batch["cls"] + 1]}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_collate_fn_of_the_loader(shards: str, context: str) -> None:
    kept: list[Any] = []
    for batch in load(shards, 10, collate_fn=Halved(), multiprocessing_context=context):
        kept.append(batch)
        for half, labels, rows, rest in kept[-4:]:
            assert half.dtype == torch.float16
            assert (half == (labels / 2).half().reshape(-1, 1, 1)).all()
            assert (rows == labels[::2].reshape(-1, 1, 1)).all()
            assert rest["list"][0].tolist() == [int(key) + 1 for key in rest["key"]]
    assert len(kept) == 10


def test_torchs_own_loader_is_left_alone(shards: str) -> None:
    dataset = ShardDataset(shards, BATCH, epoch_batches=BATCHES)
    for batch in DataLoader(dataset, WORKERS):
        assert in_slot(batch["npy"])
    for batch in data.DataLoader(dataset, batch_size=None, num_workers=WORKERS):
        check(batch)
        assert not in_slot(batch["npy"])


def test_a_copy_of_a_loader(shards: str) -> None:
    first = load(shards)
    for batch in DataLoader(first.dataset, first.num_workers, collate_fn=first.collate_fn):
        check(batch)
        assert in_slot(batch["npy"])
    for batch in first:
        check(batch)


def test_single_samples(shards: str) -> None:
    kept = list(DataLoader(ShardDataset(shards, epoch_batches=40, shuffle=False), WORKERS))
    assert len(kept) == 40
    for sample in kept:
        assert (sample["npy"] == sample["cls"]).all()


# Pictures, which are decoded where they are sent from.


@pytest.fixture
def plain(pictures: dict[str, str]) -> Callable[..., list[Any]]:
    def find(name: str, **options: Any) -> list[Any]:
        """What a loader gives in this process."""
        with Loader(pictures[name], 6, shuffle=False, **options) as loader:
            return list(loader)

    return find


@pytest.mark.parametrize("form", ["rgb8", "rgb", "l8", "rgba8", "torchrgb8", "torchrgb"])
@pytest.mark.parametrize("name", ["alike", "unlike", "mixed"])
def test_pictures(pictures: dict[str, str], plain: Any, name: str, form: str) -> None:
    options: dict[str, Any] = {"decode": form, "handler": "skip", "maxerrs": 100}
    wanted = plain(name, **options)
    found = list(DataLoader(ShardDataset(pictures[name], 6, shuffle=False, **options), 1))
    assert len(found) == len(wanted) == 6
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["__key__"] == theirs["__key__"]
        assert isinstance(ours["jpg"], list) == (name == "unlike")
        for one, other in zip(ours["jpg"], theirs["jpg"], strict=True):
            assert torch.equal(one, torch.as_tensor(other))


def test_pictures_that_are_transformed(pictures: dict[str, str], plain: Any) -> None:
    def transform(sample: Any) -> Any:
        return {"left": sample["jpg"][:, :25], "right": sample["jpg"][:, 25:], "cls": sample["cls"]}

    wanted = plain("alike", decode="rgb8", transform=transform)
    dataset = ShardDataset(pictures["alike"], 6, shuffle=False, decode="rgb8", transform=transform)
    for ours, theirs in zip(DataLoader(dataset, 1), wanted, strict=True):
        assert in_slot(ours["left"])
        for name in ("left", "right", "cls"):
            assert np.array_equal(ours[name], theirs[name])
