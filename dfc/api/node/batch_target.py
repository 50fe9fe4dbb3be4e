"""`/v1/node/batch` at a target: its part of a batch read."""

from __future__ import annotations

from dfc.batch.answer import BatchAnswer, ItemError, read_request
from dfc.batch.parts import encode_preamble
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.target.batch.opening import OwnBatches
from dfc.wire import OCTETS


class OwnBatchHandlers:
    """What nodes that put a batch together ask the owners of its items."""

    def __init__(self, batches: OwnBatches) -> None:
        self._batches = batches

    async def batch(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """A list of items of this target: how long each is, then their bytes."""
        batches, request = self._batches, await read_request(exchange)
        batches.own.enter()
        try:
            await batches.learn_buckets(request.items)
            part = await batches.open_own(request.items, request.on_missing)
        except ItemError as error:
            batches.own.leave()
            raise error.answer() from None
        except BaseException:
            batches.own.leave()
            raise
        begin = encode_preamble(part.resolved.lengths.tobytes(), part.checksums)
        total, headers = sum(part.lengths), [("Content-Type", OCTETS)]
        return BatchAnswer(headers, [part], [(0, total)], total, batches.own, threads=batches.threads, begin=begin)
