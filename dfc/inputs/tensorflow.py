"""TensorFlow: a loader as a `tf.data.Dataset`.

from dfc.inputs import tensorflow as tfinputs

train = tfinputs.dataset("http://nvdata/imagenet-@000147.tar", 256, decode="rgb8", as_tuple=["jpg", "cls"],
                         shapes={"jpg": (224, 224, 3)})
model.fit(train, epochs=90)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import count, islice
from typing import Any, Final, Unpack

import numpy as np

from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.loader import Loader, LoaderOptions, options_given, spelt_out
from dfc.inputs.numpy import Iteration, default_threads, threaded

try:
    import tensorflow as tf
except ImportError as problem:
    raise ImportError("dfc.inputs.tensorflow needs TensorFlow: pip install tensorflow") from problem


Shapes = Mapping[str, Sequence[int | None]]
_GROUP: Final = 64
PREFETCH: Final = 2  # batches, or samples, that TensorFlow keeps ready in addition to those being decoded


@spelt_out
def dataset(
    shards: str | Sequence[str] | Corpus | Loader,
    batch_size: int | None = None,
    *,
    as_tuple: Sequence[str] | None = None,
    shapes: Shapes | None = None,
    element_spec: Any = None,
    epochs: int | None = 1,
    epoch: int = 0,
    delivered: int = 0,
    threads: int | None = None,
    prefetch: int = PREFETCH,
    rank: int = 0,
    ranks: int = 1,
    **given: Unpack[LoaderOptions],
) -> tf.data.Dataset:
    """Make a `tf.data.Dataset` from a `dfc.inputs.loader.Loader` with these options, or from a given loader or mixture.

    An element is a dict of tensors by field, with `__key__` and `__source__`; with `as_tuple`, a tuple of these fields, as
    Keras expects it; or whatever `transform` or `collate` returns. Types are taken from the first element: arrays keep theirs,
    numbers are int64 or float64, text and bytes are strings. The number of samples in a batch is fixed; other dimensions are
    fixed only by `shapes`, by field and without the batch dimension. Or pass the whole `element_spec`; then nothing is read
    beforehand. Fields that cannot be tensors (dicts, arrays of different shapes in one batch) raise ValueError.

    The dataset has `epochs` epochs (None: endless), starting at `epoch`, without the first `delivered` batches. Each further
    iteration (`repeat`, Keras' next epoch) continues with the next epochs. To resume at step n: `epoch, delivered = divmod(n,
    len(loader))`; nothing before it is read. `threads` decode (default: one per core, at most eight) and end with the
    iteration, even if abandoned. With `tf.distribute`: `rank=context.input_pipeline_id, ranks=context.num_input_pipelines`.
    """
    source = _source(shards, batch_size, rank, ranks, given)
    form = partial(_tuple_of, tuple(as_tuple)) if as_tuple is not None else _same
    passes = _Passes(source, form, epochs, epoch, delivered, default_threads() if threads is None else threads)
    if element_spec is None:
        element_spec = _Specs(source.batch_size, shapes or {}).of(passes.first(), tuple(as_tuple or ()))
    made = _made_of(passes, element_spec)
    return made.prefetch(prefetch) if prefetch else made


def _source(
    shards: str | Sequence[str] | Corpus | Loader, batch_size: int | None, rank: int, ranks: int, given: LoaderOptions
) -> Loader:
    if not isinstance(shards, Loader):
        return Loader(shards, batch_size, rank=rank, ranks=ranks, **given)
    if batch_size is not None or options_given({"rank": rank, "ranks": ranks, **given}):
        raise ValueError("a Loader already has its options; pass them when you make it")
    return shards


def _made_of(passes: _Passes, element_spec: Any) -> tf.data.Dataset:
    if passes.source.batch_size is None and _is_fixed(element_spec):
        # Each call from TensorFlow into Python costs some 300 µs, so one call fetches this many samples.
        passes.group = _GROUP
        signature = tf.nest.map_structure(lambda spec: tf.TensorSpec((None, *spec.shape), spec.dtype), element_spec)
        made = tf.data.Dataset.from_generator(passes, output_signature=signature).unbatch()
    else:
        made = tf.data.Dataset.from_generator(passes, output_signature=element_spec)
    count = passes.count()
    return made if count is None else made.apply(tf.data.experimental.assert_cardinality(count))


class _Passes:
    """Makes a generator for each iteration of the dataset: first the requested epochs, then those after them."""

    def __init__(
        self, source: Loader, form: Callable[[Any], Any], epochs: int | None, epoch: int, delivered: int, threads: int
    ) -> None:
        if epoch < 0 or delivered < 0 or (epochs is not None and epochs < 1):
            raise ValueError(
                f"epochs must be at least 1, epoch and delivered at least 0; not epochs={epochs}, epoch={epoch}, "
                f"delivered={delivered}"
            )
        self.source, self._form, self._threads = source, form, threads
        self._epochs, self._epoch, self._delivered = epochs, epoch, delivered
        self.group = 0  # samples stacked into one element; 0: no stacking
        self._lock = threading.Lock()
        self._begun = 0

    def first(self) -> Any:
        """The first element, which is not counted. ValueError if there is none."""
        with closing(self._elements(self._epoch, self._delivered, 1, 0)) as elements:
            for element in elements:
                return element
        raise ValueError("no sample to take the types from; pass element_spec=")

    def count(self) -> int | None:
        """The number of elements in an iteration, in TensorFlow's terms; None if unknown."""
        if self._epochs is None:
            return int(tf.data.INFINITE_CARDINALITY)
        length = None if self._delivered else _length(self.source)
        return None if length is None else self._epochs * length

    def __call__(self) -> Iteration:
        with self._lock:
            number, self._begun = self._begun, self._begun + 1
        epoch = self._epoch + number * (self._epochs or 1)
        elements = self._elements(epoch, 0 if number else self._delivered, self._epochs, self._threads)
        return Iteration(_grouped(elements, self.group) if self.group else elements)

    def _elements(self, epoch: int, delivered: int, epochs: int | None, threads: int) -> Generator[Any, None, None]:
        for turn in count() if epochs is None else range(epochs):
            batches = threaded(self.source, threads, self.source.place, epoch + turn, 0 if turn else delivered)
            with closing(batches):
                yield from map(self._form, batches)


def _grouped(elements: Generator[Any, None, None], size: int) -> Generator[Any, None, None]:
    with closing(elements):
        while group := list(islice(elements, size)):
            yield _columns(group)


def _columns(group: list[Any]) -> Any:
    """Stack elements of the same structure along a new first dimension."""
    first = group[0]
    if isinstance(first, Mapping):
        return {name: _columns([element[name] for element in group]) for name in first}
    if isinstance(first, tuple):
        return tuple(map(_columns, map(list, zip(*group, strict=True))))
    if isinstance(first, str | bytes):
        column = np.empty(len(group), dtype=object)  # NumPy's own bytes type drops trailing zeros
        column[:] = group
        return column
    return np.stack(group)


def _is_fixed(element_spec: Any) -> bool:
    specs = tf.nest.flatten(element_spec)
    return all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in specs)


def _same(element: Any) -> Any:
    return element


def _tuple_of(names: tuple[str, ...], element: Any) -> Any:
    if not isinstance(element, Mapping):
        raise ValueError("as_tuple= works only with samples that are dicts")
    missing = [name for name in names if name not in element]
    if missing:
        raise ValueError(f"as_tuple= names {missing[0]!r}, but the samples have only {', '.join(element)}")
    return tuple(element[name] for name in names)


class _Specs:
    """Types and shapes of an element. `batch` is its number of samples, None for a single sample."""

    def __init__(self, batch: int | None, shapes: Shapes) -> None:
        self._batch = batch
        self._shapes = shapes
        self._lead = () if batch is None else (batch,)

    def of(self, element: Any, names: tuple[str, ...]) -> Any:
        """The spec of a structure. `names` are the fields of a tuple."""
        if isinstance(element, Mapping):
            return {name: self._leaf(value, name) for name, value in element.items()}
        if isinstance(element, tuple):
            # Unnamed entries of a tuple are named by position.
            named = zip(names or map(str, count()), element, strict=False)
            return tuple(
                self.of(value, ()) if isinstance(value, Mapping | tuple) else self._leaf(value, name) for name, value in named
            )
        return self._leaf(element, "")

    def _leaf(self, value: Any, name: str) -> Any:
        array = np.asarray(value) if _is_plain(value) else None
        if array is None or array.shape[: len(self._lead)] != self._lead:
            raise ValueError(
                f"field {name!r} cannot become a tensor ({_kind(value)}): leave it out, or convert it in transform="
            )
        rest = array.shape[len(self._lead) :]
        shape = tuple(self._shapes.get(name, (None,) * len(rest)))
        if len(shape) != len(rest) or any(wanted not in (None, found) for wanted, found in zip(shape, rest, strict=True)):
            raise ValueError(f"field {name!r} has the shape {rest}, not {shape}")
        dtype = tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
        return tf.TensorSpec((*self._lead, *shape), dtype)


def _is_plain(value: Any) -> bool:
    """Whether a value can be one tensor: a number, text or bytes, an array, or a list of texts or bytes."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str | bytes) for item in value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufcSU"
    return isinstance(value, int | float | complex | str | bytes | np.generic)


def _kind(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return f"arrays of {len({item.shape for item in value if isinstance(item, np.ndarray)})} different shapes in one batch"
    return type(value).__name__


def _length(source: Loader) -> int | None:
    try:
        return source.length(source.place.ranks)
    except TypeError:
        return None
