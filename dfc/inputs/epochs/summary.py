"""Messages of a loader about itself: a one-line summary, the padding warning, and a missing `epoch_batches`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dfc.inputs.base import LOG
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.sources.urls import shown
from dfc.order.epoch import Place

_SPEC_CHARS_SHOWN: Final = 100
_PADDING_SHARE: Final = 10  # warn if more than one sample in this many is repeated
_warned: set[tuple[int, int, int]] = set()  # warned once per process


def contents(spec: str, corpus: Corpus) -> str:
    """`spec: N shards, n samples`; the samples only if known."""
    return f"{spec}: {len(corpus)} shards" + (f", {corpus.samples} samples" if corpus.indexed else "")


def spec_shown(spec: object) -> str:
    """A spec, or the shards of a corpus, shortened and without secrets."""
    if isinstance(spec, Corpus):
        spec = [shard.ref.url for shard in spec.shards[:2]]
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return f"[{', '.join(map(spec_shown, spec[:1]))}{', …' if len(spec) > 1 else ''}]"
    text = shown(str(spec))
    return text if len(text) <= _SPEC_CHARS_SHOWN else text[:_SPEC_CHARS_SHOWN] + "…"


def warn_of_padding(samples: int, repeated: int, batch: int, ranks: int) -> None:
    """Warn if a large part of an epoch consists of repeated samples that fill batches."""
    what = (samples, batch, ranks)
    if repeated * _PADDING_SHARE <= samples or what in _warned:
        return
    _warned.add(what)
    advice = ["a smaller batch_size"] if batch > 1 else []
    advice += ["fewer ranks"] if ranks > 1 else []
    advice += ['equal="drop", which leaves out the rest'] if samples >= batch * ranks else []
    LOG.warning(
        "%d samples are repeated to fill an epoch of %d samples up to full batches of %d for each of %d ranks; use %s",
        *(repeated, samples, batch, ranks, " or ".join(advice)),
    )


def needs_epoch_batches(corpus: Corpus, place: Place) -> str:
    """The error text for several readers of shards whose number of samples is unknown."""
    url = next(shard.ref.url for shard in corpus.shards if shard.samples is None)
    return (
        f"{place.ranks} ranks × {place.workers} workers cannot share shards without an index ({url}) evenly: "
        "pass epoch_batches=, or store the shards in a DFC cluster"
    )
