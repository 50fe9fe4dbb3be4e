"""Real TensorFlow over a real cluster: typed tensors, epochs, resuming, and nothing left running."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from harness import Cluster, wait_for
from job_shards import tar_of
from lazy import Lazy

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if sys.version_info >= (3, 14) or platform.machine() != "x86_64":  # as in pyproject.toml
    pytest.skip("there are no wheels of TensorFlow for this Python or processor", allow_module_level=True)

from dfc.client import Client
from dfc.inputs.images import encode_image, encode_npy
from dfc.inputs.loader import Loader
from dfc.inputs.mixing import Mixture

tf, tfinputs = Lazy("tensorflow"), Lazy("dfc.inputs.tensorflow")
SHARDS, SAMPLES = 3, 50
TOTAL = SHARDS * SAMPLES


def shard(number: int) -> bytes:
    members = []
    for label in range(number * SAMPLES, (number + 1) * SAMPLES):
        fields = {
            "png": encode_image(np.full((8, 6, 3), label, dtype=np.uint8), "png"),
            "cls": b"%d" % label,
            "npy": encode_npy(np.full((2 + label % 3,), label, dtype=np.float32)),
            "json": json.dumps({"label": label}).encode(),
            "bin": b"\0%d\0" % label,
            "txt": f"é{label}".encode(),
        }
        members += [(f"{label:04d}.{extension}", body) for extension, body in fields.items()]
    return tar_of(members)


@pytest.fixture(scope="module")
def spec(cluster: Cluster) -> str:
    with Client(cluster.url) as client:
        for number in range(SHARDS):
            client.put("tf", f"t-{number}.tar", shard(number))
    return f"{cluster.url}/tf/t-@{SHARDS}.tar"


def labels(dataset: Any) -> list[list[int]]:
    return [element["cls"].numpy().tolist() for element in dataset]


def no_threads() -> bool:
    return not any(thread.name.startswith("dfc-") for thread in threading.enumerate())


def test_batches_are_typed_and_those_of_the_loader(spec: str) -> None:
    options: dict[str, Any] = {"decode": "rgb8", "fields": ["png", "cls", "bin", "txt"], "seed": 3}
    dataset = tfinputs.dataset(spec, 16, shapes={"png": (8, 6, 3)}, **options)
    assert dataset.element_spec == {
        "__key__": tf.TensorSpec((16,), tf.string),
        "__source__": tf.TensorSpec((16,), tf.string),
        "png": tf.TensorSpec((16, 8, 6, 3), tf.uint8),
        "cls": tf.TensorSpec((16,), tf.int64),
        "bin": tf.TensorSpec((16,), tf.string),
        "txt": tf.TensorSpec((16,), tf.string),
    }
    loader = Loader(spec, 16, **options)
    assert dataset.cardinality().numpy() == len(loader) == 10
    for epoch in range(2):
        found = list(dataset)
        assert len(found) == 10
        for element, batch in zip(found, loader.batches(loader.place, epoch), strict=True):
            assert (element["png"].numpy() == batch["png"]).all()
            assert (element["cls"].numpy() == batch["cls"]).all()
            assert element["bin"].numpy().tolist() == batch["bin"]
            assert [text.decode() for text in element["txt"].numpy()] == batch["txt"]
            assert [key.decode() for key in element["__key__"].numpy()] == batch["__key__"]
    assert no_threads()


def test_single_samples_may_have_different_shapes(spec: str) -> None:
    dataset = tfinputs.dataset(spec, as_tuple=["npy", "cls", "png"], fields=["npy", "cls", "png"], shuffle=False)
    assert dataset.element_spec == (
        tf.TensorSpec((None,), tf.float32),
        tf.TensorSpec((), tf.int64),
        tf.TensorSpec((None, None, None), tf.float32),
    )
    found = list(dataset)
    assert [label.numpy() for _, label, _ in found] == list(range(TOTAL))
    assert [array.numpy().tolist() for array, _, _ in found] == [[label] * (2 + label % 3) for label in range(TOTAL)]
    assert found[51][2].numpy() == pytest.approx(51 / 255)
    padded = dataset.padded_batch(50)
    assert [batch[0].shape.as_list() for batch in padded] == [[50, 4]] * 3


def test_single_samples_of_one_shape_are_what_the_loader_gives(spec: str) -> None:
    options: dict[str, Any] = {
        "decode": {"cls": int, "txt": bytes.decode, "*": False},
        "fields": ["png", "cls", "bin", "txt"],
        "seed": 2,
    }
    dataset = tfinputs.dataset(spec, **options)
    assert dataset.element_spec["png"] == tf.TensorSpec((), tf.string)
    assert dataset.cardinality().numpy() == TOTAL
    loader = Loader(spec, **options)
    expected = list(loader.batches(loader.place, 0))
    found = list(dataset.as_numpy_iterator())
    assert [{**sample, "txt": sample["txt"].decode()} for sample in found] == [
        {**sample, "__key__": sample["__key__"].encode(), "__source__": sample["__source__"].encode()} for sample in expected
    ]
    decoded = dataset.map(lambda sample: tf.io.decode_png(sample["png"]), num_parallel_calls=2).batch(50)
    assert [batch.shape.as_list() for batch in decoded] == [[50, 8, 6, 3]] * 3
    shaped = tfinputs.dataset(spec, decode="rgb8", as_tuple=["png", "cls"], shapes={"png": (8, 6, 3)})
    assert shaped.element_spec == (tf.TensorSpec((8, 6, 3), tf.uint8), tf.TensorSpec((), tf.int64))
    assert sorted(int(label) for _, label in shaped) == list(range(TOTAL))
    for picture, label in shaped.take(3):
        assert (picture.numpy() == label.numpy()).all()


def test_several_iterations_at_a_time(spec: str) -> None:
    dataset = tfinputs.dataset(spec, 10, decode={"cls": int}, fields=["cls"], threads=2)
    both = [(one["cls"].numpy().tolist(), two["cls"].numpy().tolist()) for one, two in tf.data.Dataset.zip((dataset, dataset))]
    loader = Loader(spec, 10, decode={"cls": int}, fields=["cls"])
    epochs = [[batch["cls"].tolist() for batch in loader.batches(loader.place, epoch)] for epoch in range(2)]
    assert sorted(map(list, zip(*both, strict=True))) == sorted(epochs)


def test_the_datasets_epochs_go_on_and_it_resumes_anywhere(spec: str) -> None:
    options: dict[str, Any] = {"decode": {"cls": int}, "fields": ["cls"], "seed": 1}
    loader = Loader(spec, 10, **options)
    epochs = [[batch["cls"].tolist() for batch in loader.batches(loader.place, epoch)] for epoch in range(4)]
    assert sorted(label for batch in epochs[0] for label in batch) == list(range(TOTAL))
    dataset = tfinputs.dataset(spec, 10, **options)
    assert labels(dataset.repeat(2)) == epochs[0] + epochs[1]
    assert labels(dataset) == epochs[2]
    assert labels(tfinputs.dataset(spec, 10, epochs=3, **options)) == epochs[0] + epochs[1] + epochs[2]
    epoch, delivered = divmod(20, len(loader))
    resumed = tfinputs.dataset(spec, 10, epoch=epoch, delivered=delivered, **options)
    assert labels(resumed) == epochs[1][5:]
    assert labels(resumed) == epochs[2]
    endless = tfinputs.dataset(spec, 10, epochs=None, epoch=2, **options)
    assert endless.cardinality().numpy() == tf.data.INFINITE_CARDINALITY
    assert labels(endless.take(30)) == epochs[2] + epochs[3]
    del endless
    wait_for(no_threads, "the threads to end")


def test_ranks_and_mixtures(spec: str) -> None:
    found = [
        label
        for rank in range(2)
        for batch in labels(tfinputs.dataset(spec, 25, rank=rank, ranks=2, decode={"cls": int}, fields=["cls"]))
        for label in batch
    ]
    assert len(found) == 150
    assert set(found) == set(range(TOTAL))
    sources = [Loader(spec, decode={"cls": int}, fields=["cls"], seed=seed) for seed in range(2)]
    mixture = Mixture(sources, [1, 1], 10, epoch_samples=100)
    expected = [batch["cls"].tolist() for batch in mixture.batches(mixture.place, 0)]
    assert labels(tfinputs.dataset(mixture)) == expected


def test_an_iteration_that_is_left_ends_its_threads(spec: str) -> None:
    dataset = tfinputs.dataset(spec, 5, decode="rgb8", fields=["png"], epochs=None, threads=2)
    for _ in range(3):
        iterator = iter(dataset)
        assert next(iterator)["png"].shape == (5, 8, 6, 3)
        assert not no_threads()
        del iterator
    for _ in dataset:
        break
    wait_for(no_threads, "the threads to end")


def test_what_is_no_tensor_is_refused_by_name(spec: str) -> None:
    with pytest.raises(ValueError, match="'json'"):
        tfinputs.dataset(spec, fields=["json"])
    with pytest.raises(ValueError, match=r"'npy'.*different shapes"):
        tfinputs.dataset(spec, 10, fields=["npy"])
    with pytest.raises(ValueError, match=r"'png'.*shape"):
        tfinputs.dataset(spec, 10, fields=["png"], shapes={"png": (9, 6, 3)})
    with pytest.raises(ValueError, match="'nothing'"):
        tfinputs.dataset(spec, 10, fields=["cls"], as_tuple=["nothing"])
    with pytest.raises(ValueError, match="epochs"):
        tfinputs.dataset(spec, epochs=0)


def test_an_error_of_the_data_comes_out_with_its_text(spec: str) -> None:
    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["cls"] == 77:
            raise ZeroDivisionError("seventy-seven")
        return sample

    dataset = tfinputs.dataset(spec, 10, decode={"cls": int}, fields=["cls"], transform=transform)
    with pytest.raises(tf.errors.OpError, match="seventy-seven"):
        labels(dataset)
    skipping = tfinputs.dataset(spec, 10, decode={"cls": int}, fields=["cls"], transform=transform, handler="skip")
    assert len(labels(skipping)) == 15
    wait_for(no_threads, "the threads to end")


def test_keras_trains_on_it(spec: str) -> None:
    dataset = tfinputs.dataset(
        spec, 30, decode="rgb", as_tuple=["png", "cls"], fields=["png", "cls"], shapes={"png": (8, 6, 3)}, epochs=1
    )
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    history = model.fit(dataset, epochs=2, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 2
    assert model.input_shape == (30, 8, 6, 3)


PROGRAM = """
import sys
from dfc.inputs import tensorflow as tfinputs
iterator = iter(tfinputs.dataset(sys.argv[1], 5, decode="rgb8", fields=["png"], epochs=None, threads=2))
print(next(iterator)["png"].shape)
"""


def test_the_interpreter_ends_in_mid_epoch(spec: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, spec], capture_output=True, text=True, timeout=150, check=False)
    assert (ended.returncode, ended.stdout) == (0, "(5, 8, 6, 3)\n"), ended.stderr
    assert "Traceback" not in ended.stderr
