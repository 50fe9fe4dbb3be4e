"""Shards as samples: `sharditerator`, `sharditerator_once`; and any URL as an open file: `gopen`.

from dfc.inputs import gopen

for sample in gopen.sharditerator("http://nvdata/imagenet-@001000.tgz", epochs=90):
    train(sample["png"], sample["cls"])
"""

from __future__ import annotations

from dfc.inputs.base import Counts, InputError, SampleBroken, ShardBroken, ShardChanged, ShardRef, ShardUnreadable
from dfc.inputs.shards.shardloop import ShardIterator, sharditerator, sharditerator_once
from dfc.inputs.sources.binaryfile import gopen
from dfc.inputs.sources.streams import StreamOptions

__all__ = [
    "Counts",
    "InputError",
    "SampleBroken",
    "ShardBroken",
    "ShardChanged",
    "ShardIterator",
    "ShardRef",
    "ShardUnreadable",
    "StreamOptions",
    "gopen",
    "sharditerator",
    "sharditerator_once",
]
