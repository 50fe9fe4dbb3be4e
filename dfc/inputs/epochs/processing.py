"""Process undecoded samples for batching: choose fields, decode, transform. Works in any thread or process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dfc.inputs.base import InputError, Sample, Wanted
from dfc.inputs.decoding import Decoder, Spec, broken
from dfc.inputs.epochs.batchmemory import outside
from dfc.inputs.epochs.repair import Slot


class Processing:
    """Turns an undecoded sample into an item for a batch. Errors pass through, and a sample that fails becomes an error."""

    def __init__(
        self,
        fields: Sequence[str] | None,
        decode: Spec,
        pickle: bool,
        transform: Callable[[Sample], Any] | None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if isinstance(fields, str):
            raise ValueError(f"fields= must be a list of extensions, not {fields!r}")
        # The alternative names of each field; it gets the first one.
        self._fields = [[name for name in field.lower().split(";") if name] for field in fields or ()]
        self.wanted = None if fields is None else Wanted(name for names in self._fields for name in names)
        self._decoder = Decoder(decode, pickle=pickle)
        self._transform = transform
        self._stays = transform is None and collate is None  # whether decoded samples are batched as they are
        # Whether samples stay as they are.
        self.nothing = fields is None and transform is None and (decode is False or decode is None)

    def __call__(self, slot: Slot) -> Any:
        if isinstance(slot, InputError):
            return slot
        try:
            chosen = slot if self.wanted is None else self._chosen(slot, self.wanted)
            item: Any = self._decoder(chosen) if self._stays else outside(self._decoder, chosen)
            if self._transform is not None:
                try:
                    item = self._transform(item)
                except InputError:
                    raise
                except Exception as problem:
                    raise broken(slot, "transform failed", problem) from problem
                if item is None:
                    raise broken(slot, "transform returned None; it must return the sample")
        except InputError as problem:
            return problem
        return item

    def _chosen(self, sample: Sample, wanted: Wanted) -> Sample:
        chosen: Sample = {"__key__": sample["__key__"], "__source__": sample["__source__"]}
        for names in self._fields:
            name = next((name for name in names if name in sample), None)
            if name is None:
                raise broken(sample, wanted.lacking(names, sample))
            chosen[names[0]] = sample[name]
        return chosen
