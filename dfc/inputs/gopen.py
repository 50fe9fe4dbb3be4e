"""Shards as samples: `sharditerator`, `sharditerator_once`; and any URL as an open file: `gopen`.

from dfc.inputs import gopen

for sample in gopen.sharditerator("http://nvdata/imagenet-@001000.tgz", epochs=90):
    train(sample["png"], sample["cls"])
"""

from __future__ import annotations

from dfc.inputs.shardreader import Portion, Segment, SegmentReader

__all__ = ["Portion", "Segment", "SegmentReader"]
