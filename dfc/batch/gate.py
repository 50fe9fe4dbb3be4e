"""How many batch reads a node takes at a time, and how many bytes of lists they hold together.

A list of 32 MiB takes a node tens of MB of memory and seconds of its processor. Short lists, as loaders send them, are only
counted. Long ones come in turn, the first to come first, within a budget of bytes of which no client gets more than half; and
one after the other is decoded and split, since beside more of them nothing else of the node would get its turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dfc.errors import Unavailable
from dfc.limits import BATCH_LISTS_BYTES_MAX, BATCH_SHORT_BYTES, BATCH_WAIT_S, BATCHES_MAX

RETRY_S = 2


class BatchPlace:
    """The place of one batch read, until `leave`. `size`: the bytes of its list, 0 for a short one."""

    def __init__(self, gate: BatchGate, size: int, client: str) -> None:
        self._gate = gate
        self.size = size
        self.client = client
        self._is_left = False

    def leave(self) -> None:
        """Give it back; safe to call again."""
        if not self._is_left:
            self._is_left = True
            self._gate.left(self)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """While the processor works on the list: one long list at a time."""
        if not self.size:
            yield
            return
        async with self._gate.turn:
            yield


class _Waiting(NamedTuple):
    place: BatchPlace
    admitted: asyncio.Future[None]


class BatchGate:
    """The places of one kind of batch reads at a node; `kind` names them in metrics."""

    def __init__(self, kind: str, bytes_max: int = BATCH_LISTS_BYTES_MAX) -> None:
        self.kind = kind
        self._bytes_max = bytes_max
        self.running = 0
        self.bytes = 0
        self.refused = 0
        self._by_client: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []
        self.turn = asyncio.Lock()

    async def enter(self, size: int, client: str = "") -> BatchPlace:
        """A place for a list of so many bytes, at most. `client`: who asks, if that may be anybody. Unavailable."""
        place = BatchPlace(self, size if size > BATCH_SHORT_BYTES else 0, client)
        # Those that wait keep no short list out: to announce a long one costs nothing.
        if self.running >= BATCHES_MAX or (place.size and len(self._waiting) >= BATCHES_MAX):
            raise self._refusal(f"{BATCHES_MAX} batch reads are already running, or wait; try again later")
        waiting = _Waiting(place, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._admit()
        if waiting.admitted.done():
            return place
        try:
            async with asyncio.timeout(BATCH_WAIT_S):
                await waiting.admitted
        except BaseException as error:
            if waiting in self._waiting:  # its turn has not come
                self._waiting.remove(waiting)
                self._admit()  # those behind it may have waited for it
            else:
                place.leave()
            if isinstance(error, TimeoutError):
                raise self._refusal("the lists of other batch reads take all memory there is for them; try again") from None
            raise
        return place

    def left(self, place: BatchPlace) -> None:
        """See `BatchPlace.leave`."""
        self.running -= 1
        self.bytes -= place.size
        self._by_client[place.client] -= place.size
        if not self._by_client[place.client]:
            del self._by_client[place.client]
        self._admit()

    def _admit(self) -> None:
        """Let in whoever can be: nobody passes another one who only waits for room."""
        is_full = False
        for waiting in list(self._waiting):
            size, client = waiting.place.size, waiting.place.client
            has_share = not client or not self._by_client[client] or self._by_client[client] + size <= self._bytes_max // 2
            if size and (is_full or not has_share):
                continue
            if size and self.bytes + size > self._bytes_max:
                is_full = True
                continue
            if self.running >= BATCHES_MAX:
                return
            self._waiting.remove(waiting)
            self.running += 1
            self.bytes += size
            self._by_client[client] += size
            if not waiting.admitted.done():
                waiting.admitted.set_result(None)

    def _refusal(self, why: str) -> Unavailable:
        self.refused += 1
        return Unavailable(why, retry_after_s=RETRY_S)


def gate_families(gates: Iterable[BatchGate]) -> Iterable[Metric]:
    """Make the metric families of gates."""
    running = GaugeMetricFamily("dfc_batches", "Batch reads that run", labels=("kind",))
    held = GaugeMetricFamily("dfc_batch_list_bytes", "Bytes of long lists that batch reads hold", labels=("kind",))
    refused = CounterMetricFamily("dfc_batches_refused", "Batch reads that were answered 503", labels=("kind",))
    for gate in gates:
        running.add_metric((gate.kind,), gate.running)
        held.add_metric((gate.kind,), gate.bytes)
        refused.add_metric((gate.kind,), gate.refused)
    return running, held, refused
