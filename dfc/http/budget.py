"""Budgets: how many requests of one kind a node works on at a time, and how many bytes they may hold together.

A limit for each request is none for all of them: forty lists of 32 MiB would take a node GB of memory, and the processor from
its heartbeats. A request that costs much takes a place in the budget of its kind first, and has it until its answer is sent.
Those that find no room wait, the first to come first; no client gets more than half of the bytes or 3/4 of the places.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dfc import limits
from dfc.errors import Unavailable

RETRY_S: Final = 2


@dataclass(frozen=True)
class Kind:
    """A kind of requests: `places` at a time, which together hold `bytes_max`. `waits`: for a place, too, and not only for
    bytes. `is_shared`: no client takes all; for kinds that only nodes make it is no matter who asks."""

    name: str
    places: int
    bytes_max: int = 0
    waits: bool = True
    is_shared: bool = True


BATCHES: Final = Kind("batches", limits.BATCHES_MAX, limits.BATCH_LISTS_BYTES_MAX, waits=False)
PARTS: Final = Kind("parts", limits.BATCHES_MAX, limits.BATCH_LISTS_BYTES_MAX, waits=False, is_shared=False)
LISTINGS: Final = Kind("listings", limits.LISTINGS_MAX, limits.LISTINGS_BYTES_MAX)
SEARCHES: Final = Kind("searches", limits.SEARCHES_MAX, limits.SEARCHES_BYTES_MAX)
BODIES: Final = Kind("bodies", limits.BODIES_MAX, limits.BODIES_BYTES_MAX)
STREAMS: Final = Kind("streams", limits.STREAMS_MAX, waits=False)
PAGES: Final = Kind("pages", limits.PAGES_MAX)
THUMBNAILS: Final = Kind("thumbnails", limits.THUMBNAIL_REQUESTS_MAX)
KINDS: Final = (BATCHES, PARTS, LISTINGS, SEARCHES, BODIES, STREAMS, PAGES, THUMBNAILS)


class BudgetPlace:
    """The place of one request, until `leave`. `size`: the bytes that it may hold; 0 for one that is only counted."""

    def __init__(self, budget: Budget, size: int, client: str) -> None:
        self._budget = budget
        self.size = size
        self.client = client
        self._is_left = False

    def leave(self) -> None:
        """Give it back; safe to call again."""
        if not self._is_left:
            self._is_left = True
            self._budget.left(self)

    def shrink(self, size: int) -> None:
        """Give back what it holds beyond so many bytes, now that it is known how many are needed."""
        if not self._is_left and size < self.size:
            self._budget.shrunk(self, size)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """While the processor works on what is large: one at a time, or nothing else of the node would get its turn."""
        if not self.size:
            yield
            return
        async with self._budget.turn:
            yield


class _Waiting(NamedTuple):
    place: BudgetPlace
    admitted: asyncio.Future[None]


class Budget:
    """The places of one kind of requests at a node."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.running = 0
        self.bytes = 0
        self.refused = 0
        self._bytes_of, self._places_of = Counter[str](), Counter[str]()
        self._waiting: list[_Waiting] = []
        self.turn = asyncio.Lock()

    async def enter(self, size: int = 0, client: str = "") -> BudgetPlace:
        """A place for a request that holds so many bytes at most; more than all that there are is as many. Unavailable."""
        kind = self.kind
        place = BudgetPlace(self, min(size, kind.bytes_max), client if kind.is_shared else "")
        # Those that wait for bytes keep nobody out who needs none: to announce much costs nothing.
        may_wait = kind.waits or place.size
        if (self.running >= kind.places and not kind.waits) or (may_wait and len(self._waiting) >= kind.places):
            raise self._refusal(f"{kind.places} {kind.name} are already running, or wait; try again later")
        if not kind.waits and not self._has_place(place.client):
            count = self._places_of[place.client]
            raise self._refusal(f"{count} {kind.name} of this client are already running; try again later")
        waiting = _Waiting(place, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._admit()
        if waiting.admitted.done():
            return place
        try:
            async with asyncio.timeout(limits.BUDGET_WAIT_S):
                await waiting.admitted
        except BaseException as error:
            if waiting in self._waiting:  # its turn has not come
                self._waiting.remove(waiting)
                self._admit()  # those behind it may have waited for it
            else:
                place.leave()
            if isinstance(error, TimeoutError):
                raise self._refusal(f"other {kind.name} take all the room there is for them; try again") from None
            raise
        return place

    def left(self, place: BudgetPlace) -> None:
        """See `BudgetPlace.leave`."""
        self.running -= 1
        self._count(place, -1, -place.size)
        self._admit()

    def shrunk(self, place: BudgetPlace, size: int) -> None:
        """See `BudgetPlace.shrink`."""
        self._count(place, 0, size - place.size)
        place.size = size
        self._admit()

    def _count(self, place: BudgetPlace, places: int, size: int) -> None:
        self.bytes += size
        self._places_of[place.client] += places
        self._bytes_of[place.client] += size
        if not self._places_of[place.client]:
            del self._places_of[place.client], self._bytes_of[place.client]

    def _admit(self) -> None:
        """Let in whoever can be: nobody passes another one who only waits for room."""
        kind, is_full = self.kind, False
        for waiting in list(self._waiting):
            if self.running >= kind.places:
                return
            size, client = waiting.place.size, waiting.place.client
            if not self._has_share(size, client) or (size and is_full):
                continue
            if size and self.bytes + size > kind.bytes_max:
                is_full = True
                continue
            self._waiting.remove(waiting)
            self.running += 1
            self._count(waiting.place, 1, size)
            if not waiting.admitted.done():
                waiting.admitted.set_result(None)

    def _has_share(self, size: int, client: str) -> bool:
        """Whether a client may have one more: it may have one of any size, and further ones within its share."""
        if not client or client not in self._places_of:
            return True
        held = self._bytes_of[client]
        return not (size and held and held + size > self.kind.bytes_max // 2) and self._has_place(client)

    def _has_place(self, client: str) -> bool:
        return not client or self._places_of[client] < self.kind.places * 3 // 4

    def _refusal(self, why: str) -> Unavailable:
        self.refused += 1
        return Unavailable(why, retry_after_s=RETRY_S)


class Budgets:
    """The budgets of one node, a kind each."""

    def __init__(self) -> None:
        self._of = {kind.name: Budget(kind) for kind in KINDS}

    def __getitem__(self, kind: Kind) -> Budget:
        return self._of[kind.name]

    def families(self) -> Iterable[Metric]:
        """Make the metric families."""
        running = GaugeMetricFamily("dfc_budget_requests", "Requests that have a place", labels=("kind",))
        held = GaugeMetricFamily("dfc_budget_bytes", "Bytes that they may hold", labels=("kind",))
        refused = CounterMetricFamily("dfc_budget_refused", "Requests that were answered 503", labels=("kind",))
        for name, budget in self._of.items():
            running.add_metric((name,), budget.running)
            held.add_metric((name,), budget.bytes)
            refused.add_metric((name,), budget.refused)
        return running, held, refused
