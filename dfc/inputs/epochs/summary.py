"""What a loader says about itself: what it reads in a line, and what its user should know before an epoch is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dfc.inputs.base import LOG
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.sources.urls import shown
from dfc.order.epoch import Place

_SPEC_CHARS_SHOWN: Final = 100
_PADDING_SHARE: Final = 10  # one sample in so many that is repeated is worth a warning
_warned: set[tuple[int, int, int]] = set()  # of what: once a process


def contents(spec: str, corpus: Corpus) -> str:
    """`spec: N shards, n samples`, the latter where it is known."""
    return f"{spec}: {len(corpus)} shards" + (f", {corpus.samples} samples" if corpus.indexed else "")


def spec_shown(spec: object) -> str:
    """A spec, or the shards of a corpus, short and without secrets."""
    if isinstance(spec, Corpus):
        spec = [shard.ref.url for shard in spec.shards[:2]]
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return f"[{', '.join(map(spec_shown, spec[:1]))}{', …' if len(spec) > 1 else ''}]"
    text = shown(str(spec))
    return text if len(text) <= _SPEC_CHARS_SHOWN else text[:_SPEC_CHARS_SHOWN] + "…"


def warn_of_padding(samples: int, repeated: int, batch: int, ranks: int) -> None:
    """When a large part of an epoch is samples that come again to fill batches."""
    what = (samples, batch, ranks)
    if repeated * _PADDING_SHARE <= samples or what in _warned:
        return
    _warned.add(what)
    advice = ["a smaller batch_size"] if batch > 1 else []
    advice += ["fewer ranks"] if ranks > 1 else []
    advice += ['equal="drop", which leaves out the rest'] if samples >= batch * ranks else []
    LOG.warning(
        "%d samples are repeated to fill an epoch of %d samples up to full batches of %d for each of %d ranks: take %s",
        *(repeated, samples, batch, ranks, " or ".join(advice)),
    )


def needs_epoch_batches(corpus: Corpus, place: Place) -> str:
    """The message that several readers cannot share out shards of an unknown number of samples."""
    url = next(shard.ref.url for shard in corpus.shards if shard.samples is None)
    return (
        f"{place.ranks} ranks × {place.workers} workers cannot have equally many batches of shards without an index ({url}): "
        "give epoch_batches=, or store them in a DFC cluster"
    )
