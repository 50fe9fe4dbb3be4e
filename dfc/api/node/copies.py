"""`/v1/node/copies…` and `/v1/node/compare…` at a target: what targets say to each other about copies."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from dfc.api.objects import content_answer
from dfc.api.shared import msgpack_answer
from dfc.checksum import ExpectedChecksums
from dfc.errors import BadRequest
from dfc.http.answers import Answer, flag, json_answer
from dfc.http.exchange import Exchange
from dfc.http.faces import Endpoint, Handlers
from dfc.limits import COPY_MESSAGE_BYTES_MAX
from dfc.names import check_object_name
from dfc.placement.map import Durability
from dfc.replication.compare import CheckRequest
from dfc.target.copies import messages
from dfc.target.copies.answers import CompareAnswers
from dfc.target.copies.compare import Comparer
from dfc.target.copies.peers import ATTRIBUTES_HEADER
from dfc.target.copies.receive import CopyReceiver
from dfc.target.publishing import Publications
from dfc.wire import CHECKSUM_HEADER, OCTETS

T = TypeVar("T")
COPY_QUERY: Final = frozenset(("kind", "of", "version", "durability", "pending", "job", "node", "map"))
BODY_QUERY: Final = frozenset(("version", "durability", "node", "map"))
_NUMBER: Final = re.compile("[0-9]{1,18}")
_VERSION: Final = re.compile("[0-9a-f]{18}")


class CopyHandlers(Handlers):
    """Handlers for other targets."""

    def __init__(self, receiver: CopyReceiver, publications: Publications) -> None:
        self._receiver = receiver
        self._publications = publications

    async def take(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Store rows of objects with small bodies, and tombstones."""
        sent = await read_msgpack(exchange, messages.CopiesSent)
        for item in sent.items:
            check_object_name(item.name)
            if item.kind == "staged":
                raise BadRequest("an output that is staged comes with its body")
        return msgpack_answer(await self._receiver.take(sent.sender, sent.items))

    async def put(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Store the row of an object whose body this is."""
        sender, item = _item(exchange, parameters)
        return msgpack_answer(await self._receiver.receive(sender, item, exchange))

    async def get(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Return an object's bytes in one version, whatever the role of its disk."""
        query = exchange.query_parameters(COPY_QUERY)
        found = await self._receiver.open(messages.CopyKey(*parameters), query.get("version", ""))
        return content_answer(200, found, found.size, f"Content-Type: {OCTETS}\r\n")

    async def prepare(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Keep a body whose row will follow."""
        query, key = exchange.query_parameters(BODY_QUERY), messages.CopyKey(*parameters)
        check_object_name(key.name)
        try:
            durability = msgspec.convert(query.get("durability", ""), Durability)
        except msgspec.ValidationError as error:
            raise BadRequest(f"not a copy: {error}") from None
        await self._receiver.prepare(_sender(query), key, _version(query), durability, exchange)
        return msgpack_answer(messages.DiskReply(True))

    async def forget(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Drop a body whose row will not follow."""
        self._receiver.forget(messages.CopyKey(*parameters), _version(exchange.query_parameters(BODY_QUERY)))
        return msgpack_answer(messages.DiskReply(True))

    async def states(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Say what disks here have of names."""
        request = await read_msgpack(exchange, messages.NamesRequest)
        return msgpack_answer(messages.StatesReply(await self._receiver.states(request.sender, request.names)))

    async def confirm(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Take rows that count."""
        message = await read_msgpack(exchange, messages.Confirmed)
        await self._receiver.confirm(message.rows)
        return msgpack_answer(messages.DiskReply(True))

    async def missing(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Take hints about disks that lack rows, as the primary of those."""
        message = await read_msgpack(exchange, messages.MissingRows)
        await self._receiver.missing(message.sender, message.names)
        return msgpack_answer(messages.DiskReply(True))

    async def pending(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the pending rows of names whose primary is at the sender."""
        request = await read_msgpack(exchange, messages.PendingRequest)
        return msgpack_answer(await self._receiver.pending(request.sender, request.step, request.after))

    async def offers(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Take outputs of jobs, as the primary of their names; whether they are there, the sender asks later."""
        message = await read_msgpack(exchange, messages.Offered)
        for row in message.rows:
            check_object_name(row.key.name)
        await self._publications.take(message.sender, message.rows)
        return msgpack_answer(messages.DiskReply(True))

    async def resolved(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Say whether nothing is pending on a disk that an existing primary could resolve."""
        request = await read_msgpack(exchange, messages.DiskRequest)
        return msgpack_answer(messages.DiskReply(await self._receiver.is_resolved(request.sender, request.disk)))

    ENDPOINTS = (
        Endpoint("/v1/node/copies", {"POST": take}),
        Endpoint("/v1/node/copies/states", {"POST": states}),
        Endpoint("/v1/node/copies/confirm", {"POST": confirm}),
        Endpoint("/v1/node/copies/missing", {"POST": missing}),
        Endpoint("/v1/node/copies/pending", {"POST": pending}),
        Endpoint("/v1/node/copies/offers", {"POST": offers}),
        Endpoint("/v1/node/copies/resolved", {"POST": resolved}),
        Endpoint("/v1/node/copies/{disk}/{bucket}/{object…}", {"PUT": put, "GET": get}, COPY_QUERY),
        Endpoint("/v1/node/bodies/{disk}/{bucket}/{object…}", {"PUT": prepare, "DELETE": forget}, BODY_QUERY),
    )


async def read_msgpack(exchange: Exchange, kind: type[T]) -> T:
    """Read and check the body of a message. BadRequest."""
    body = await exchange.read_small(COPY_MESSAGE_BYTES_MAX)
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"invalid MessagePack: {error}") from None


def _item(exchange: Exchange, parameters: tuple[str, ...]) -> tuple[messages.Sender, messages.CopyItem]:
    """Parse the row in the head of a request whose body is the object. BadRequest, BadName."""
    query, length = exchange.query_parameters(COPY_QUERY), exchange.declared_length
    disk, bucket_id, name = parameters
    if length is None:
        raise BadRequest("a copy needs a Content-Length")
    sender = _sender(query)
    checksum = ExpectedChecksums.from_headers(exchange.headers.get(CHECKSUM_HEADER), None).xxh3_128
    if checksum is None:
        raise BadRequest(f"a copy needs {CHECKSUM_HEADER}")
    try:
        attributes = base64.b64decode(exchange.headers.get(ATTRIBUTES_HEADER, ""), validate=True)
        state = {"version": query.get("version", ""), "size": length, "checksum": checksum, "attributes": attributes}
        item = {
            "kind": query.get("kind", ""),
            "of": query.get("of", ""),
            "to": disk,
            "bucket_id": bucket_id,
            "name": check_object_name(name),
            "state": msgspec.convert(state, messages.RowState),
            "durability": query.get("durability", ""),
            "is_pending": flag(query, "pending"),
            "job": query.get("job", ""),
        }
        return sender, msgspec.convert(item, messages.CopyItem)
    except (msgspec.ValidationError, ValueError) as error:
        raise BadRequest(f"not a copy: {error}") from None


def _sender(query: Mapping[str, str]) -> messages.Sender:
    if not _NUMBER.fullmatch(query.get("map", "")):
        raise BadRequest("map must be the version of a cluster map")
    return messages.Sender(query.get("node", ""), int(query["map"]))


def _version(query: Mapping[str, str]) -> str:
    version = query.get("version", "")
    if not _VERSION.fullmatch(version):
        raise BadRequest("version must be the version of an object")
    return version


# --- `/v1/node/compare…` and `/v1/node/check` at a target: copies that are compared, and what proxies ask about that.


class CompareHandlers(Handlers):
    """Handlers for other targets, and for proxies."""

    def __init__(self, answers: CompareAnswers, comparer: Comparer) -> None:
        self._answers = answers
        self._comparer = comparer

    async def digests(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return the digests of what a disk here shares with a primary."""
        return msgpack_answer(await self._answers.digests(await read_msgpack(exchange, messages.DigestsRequest)))

    async def names(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Return names and digests of what a disk here shares with a primary."""
        return msgpack_answer(await self._answers.names(await read_msgpack(exchange, messages.SharedNamesRequest)))

    async def looks(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Say what a disk here has of names."""
        return msgpack_answer(await self._answers.looks(await read_msgpack(exchange, messages.LooksRequest)))

    async def set_aside(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Set rows aside of which the primary knows nothing."""
        return msgpack_answer(await self._answers.set_aside(await read_msgpack(exchange, messages.AsideRequest)))

    async def begin(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Begin to compare what the disks here are the primaries of."""
        return json_answer(self._comparer.ask(await exchange.json(CheckRequest)), 202)

    async def check(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Say how far that is, and what was found."""
        return json_answer(self._comparer.status())

    ENDPOINTS = (
        Endpoint(messages.DIGESTS_PATH, {"POST": digests}),
        Endpoint(messages.NAMES_PATH, {"POST": names}),
        Endpoint(messages.LOOKS_PATH, {"POST": looks}),
        Endpoint(messages.ASIDE_PATH, {"POST": set_aside}),
        Endpoint("/v1/node/check", {"GET": check, "POST": begin}),
    )
