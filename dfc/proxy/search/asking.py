"""Ask the targets that have some shards to search them; what one of them cannot search, others are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from dfc.addresses import Refusals
from dfc.errors import BucketNotFound, DfcError, NotFound, Unavailable
from dfc.http.calls.problems import RemoteError
from dfc.keysearch import ELSEWHERE, KeyQuery, SamplePlace, SearchAsked, SearchPart, begin_of
from dfc.limits import SEARCH_ANSWER_BYTES_MAX, SEARCH_BODY_BYTES_MAX, SEARCH_LOOKUP_S
from dfc.placement.map import BucketEntry, NodeEntry
from dfc.placement.readers import in_order
from dfc.proxy.cluster import Cluster
from dfc.wire import MSGPACK
from dfc.wire.objects import UnsearchedShard

ROUNDS_MAX: Final = 8  # of questions; a move of shards makes one more, and so does each copy that cannot be read
ROUND_S: Final = 0.1  # times the number of rounds so far: while the map changes
ANSWER_S: Final = 1.0  # for an answer, after the time that a target has for its search
ANSWER_BYTES_MAX: Final = 2 * SEARCH_ANSWER_BYTES_MAX + SEARCH_BODY_BYTES_MAX  # with all shards that it could not search
_HEADERS: Final = {"Content-Type": MSGPACK}


class Searched(NamedTuple):
    """All answers, and the shards that no target could search."""

    parts: list[SearchPart]
    unsearched: list[UnsearchedShard]


class TargetQuestions:
    """The questions of one search."""

    def __init__(
        self,
        cluster: Cluster,
        refusals: Refusals,
        bucket: BucketEntry,
        query: KeyQuery,
        limit: int,
        start: SamplePlace | None,
        until_s: float,
    ) -> None:
        """`start`: where the search goes on. `until_s`: when it ends, by the loop's clock."""
        self._cluster = cluster
        self._refusals = refusals
        self._bucket = bucket
        self._query = query
        self._limit = limit
        self._start = start
        self._until_s = until_s
        self._asked: dict[str, set[str]] = {}  # by shard: nodes
        self._why: dict[str, UnsearchedShard] = {}
        self._final: list[UnsearchedShard] = []
        self._parts: list[SearchPart] = []

    async def ask(self, names: Sequence[str]) -> Searched:
        """Search shards, each at one target at a time. BucketNotFound."""
        left = list(names)
        for number in range(ROUNDS_MAX):
            if number and any(self._why[name].code == ELSEWHERE for name in left):
                await asyncio.sleep(min(ROUND_S * number, max(0.0, self._left_s())))
            groups = await asyncio.to_thread(self._grouped, sorted(left))  # targets search them in this order
            if not groups:
                return Searched(self._parts, self._final)
            if number and not self._left_s():
                return self._late([name for _, shards in groups for name in shards])
            left = []
            asking = (self._of_target(node, shards) for node, shards in groups)
            for failed in await asyncio.gather(*asking, return_exceptions=True):
                if isinstance(failed, BaseException):
                    raise failed
                left += failed
        return Searched(self._parts, [*self._final, *(self._why[name] for name in left)])

    def _late(self, names: Sequence[str]) -> Searched:
        """When the time is over and some targets failed: a search that goes on finds shards that have moved; of others it is
        said that they were not searched, lest they hold it up for ever."""
        moved = min((name for name in names if self._why[name].code == ELSEWHERE), default=None)
        parts = self._parts
        if moved is not None:
            parts = [*parts, SearchPart(stopped="time", reached=begin_of(moved, self._start))]
        return Searched(parts, [*self._final, *(why for why in map(self._why.__getitem__, names) if why.code != ELSEWHERE)])

    def _left_s(self) -> float:
        return max(0.0, self._until_s - asyncio.get_running_loop().time())

    def _grouped(self, names: Sequence[str]) -> list[tuple[NodeEntry, list[str]]]:
        """Each shard at the first of its readers that was not asked for it; those without one are given up. In a thread."""
        groups: dict[str, tuple[NodeEntry, list[str]]] = {}
        for name in names:
            try:
                node = self._next_reader(name)
            except DfcError as error:
                self._final.append(UnsearchedShard(name, error.code, error.message))
                continue
            if node is None:
                self._final.append(self._why[name])
            else:
                groups.setdefault(node.id, (node, []))[1].append(name)
        return list(groups.values())

    def _next_reader(self, name: str) -> NodeEntry | None:
        readers, asked = in_order(self._cluster.readers(self._bucket, name), self._refusals), self._asked.get(name)
        if not asked:
            return readers[0]
        if name in self._why and self._why[name].code == ELSEWHERE and all(node.id in asked for node in readers):
            asked.clear()  # the map is changing: one of them will have it
        return next((node for node in readers if node.id not in asked), None)

    async def _of_target(self, node: NodeEntry, shards: list[str]) -> list[str]:
        """Ask one target; return what others have to be asked for."""
        try:
            part = await self._fetch(node, shards)
        except DfcError as error:
            if isinstance(error, NotFound) or (isinstance(error, RemoteError) and error.status < 500):
                raise
            failed = [UnsearchedShard(shard, error.code, error.message) for shard in shards]
        else:
            self._parts.append(part)
            failed = part.failed
        for each in failed:
            self._asked.setdefault(each.shard, set()).add(node.id)
            self._why[each.shard] = each
        return [each.shard for each in failed]

    async def _fetch(self, node: NodeEntry, shards: list[str]) -> SearchPart:
        budget_s = min(self._left_s(), SEARCH_LOOKUP_S)  # of which sums of seconds can be a hair more
        asked = SearchAsked(self._bucket.name, self._query, shards, self._limit, budget_s, self._start)
        body = await asyncio.to_thread(msgspec.msgpack.encode, asked)
        url = f"{node.url}/v1/node/search"
        try:
            async with asyncio.timeout(budget_s + ANSWER_S):
                status, _, content = await self._cluster.control.fetch(
                    "POST", url, body, _HEADERS, long=True, bytes_max=ANSWER_BYTES_MAX
                )
        except TimeoutError:
            raise Unavailable(f"target {node.id} did not answer in time") from None
        if status >= 400:
            error = RemoteError(status, content, url)
            raise BucketNotFound(error.message) if error.code == BucketNotFound.code else error
        try:
            return await asyncio.to_thread(msgspec.msgpack.decode, content, type=SearchPart)
        except msgspec.DecodeError as error:
            raise Unavailable(f"unexpected answer from {url}: {error}") from error
