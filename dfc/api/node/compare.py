"""`/v1/node/compare…` and `/v1/node/check` at a target: copies that are compared, and what proxies ask about that."""

from __future__ import annotations

from dfc.api.node.copies import msgpack_answer, read_msgpack
from dfc.http.answers import Answer, json_answer
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.replication.checked import CheckAsked
from dfc.target.copies.compare.answers import CompareAnswers
from dfc.target.copies.compare.comparer import Comparer
from dfc.target.copies.compare.questions import (
    ASIDE_PATH,
    DIGESTS_PATH,
    LOOKS_PATH,
    NAMES_PATH,
    AsideAsked,
    DigestsAsked,
    LooksAsked,
    SharedNamesAsked,
)


class CompareHandlers(Handlers):
    """Handlers for other targets, and for proxies."""

    def __init__(self, answers: CompareAnswers, comparer: Comparer) -> None:
        self._answers = answers
        self._comparer = comparer

    async def digests(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the digests of what a disk here shares with a primary."""
        return msgpack_answer(await self._answers.digests(await read_msgpack(exchange, DigestsAsked)))

    async def names(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return names and digests of what a disk here shares with a primary."""
        return msgpack_answer(await self._answers.names(await read_msgpack(exchange, SharedNamesAsked)))

    async def looks(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Say what a disk here has of names."""
        return msgpack_answer(await self._answers.looks(await read_msgpack(exchange, LooksAsked)))

    async def set_aside(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Set rows aside of which the primary knows nothing."""
        return msgpack_answer(await self._answers.set_aside(await read_msgpack(exchange, AsideAsked)))

    async def begin(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Begin to compare what the disks here are the primaries of."""
        asked: CheckAsked = await exchange.json(CheckAsked)
        return json_answer(self._comparer.ask(asked), 202)

    async def check(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Say how far that is, and what was found."""
        return json_answer(self._comparer.status())

    ENDPOINTS = (
        Endpoint(DIGESTS_PATH, {"POST": digests}),
        Endpoint(NAMES_PATH, {"POST": names}),
        Endpoint(LOOKS_PATH, {"POST": looks}),
        Endpoint(ASIDE_PATH, {"POST": set_aside}),
        Endpoint("/v1/node/check", {"GET": check, "POST": begin}),
    )
