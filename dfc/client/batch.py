"""Batch reads: items from anywhere in the cluster as one ordered tar stream, raw or member by member."""

from __future__ import annotations

import io
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Final, cast

import msgspec

from dfc.batch.items import BatchItem, BatchRequest, OnMissing
from dfc.client.source import make_source
from dfc.errors import BadRequest, DfcError, ObjectCorrupt, Unreachable
from dfc.http.calls.retry import Retries
from dfc.limits import MIB
from dfc.reach.batch import BatchReader, read_lengths
from dfc.reach.objects import ObjectCalls
from dfc.tar.header import TarError
from dfc.tar.reader import iterate_members
from dfc.wire import MSGPACK

ITEMS_A_REQUEST: Final = 20_000  # a longer list is split; the next part is requested once this one has been read
READ_BYTES: Final = MIB
Items = Iterable[BatchItem | Mapping[str, Any]]


def open_batch(calls: ObjectCalls, items: Sequence[BatchItem], on_missing: OnMissing, *, lengths: bool = False) -> BatchReader:
    """Send one batch request. Raises the node's error, which names the item, before anything is read."""
    body = make_source(msgspec.msgpack.encode(BatchRequest(list(items), on_missing)))
    query = "?lengths=1" if lengths else ""
    # Ask the owner of a random item: its own items take one hop less, and the load is spread over the nodes.
    near = random.choice(items) if items else None
    owned = None if near is None else (near.bucket, near.object)
    retries = Retries(calls.policy)
    while True:
        answer = calls.stream(f"/v1/batch{query}", "POST", {"Content-Type": MSGPACK}, body, near=owned)
        try:
            return read_lengths(answer, len(items)) if lengths else BatchReader(answer)
        except Unreachable as problem:  # nothing has been handed out yet
            if not retries.again(problem, calls.wait):
                raise


def read_batch(calls: ObjectCalls, items: Items, on_missing: OnMissing) -> Iterator[tuple[str, bytes]]:
    """Yield the name and bytes of each member, with as many requests as the list needs."""
    rest = map(as_item, items)
    begin = 0
    while group := list(islice(rest, ITEMS_A_REQUEST)):
        with _open_group(calls, group, on_missing, begin) as reader:
            try:
                for member, data in iterate_members(cast(BinaryIO, io.BufferedReader(reader, READ_BYTES)), strict=True):
                    yield member.name, data.readall() or b""
            except TarError as problem:
                raise ObjectCorrupt(f"the batch arrived as a damaged tar: {problem}") from None
        begin += len(group)


def _open_group(calls: ObjectCalls, group: list[BatchItem], on_missing: OnMissing, begin: int) -> BatchReader:
    try:
        return open_batch(calls, group, on_missing)
    except DfcError as error:
        if begin:
            error.message = f"in the request that starts at item {begin}: {error.message}"
        raise


def portions(members: Iterator[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Group members into lists of about 1 MiB, for consumers that pay a thread switch per list."""
    portion: list[tuple[str, bytes]] = []
    size = 0
    for name, data in members:
        portion.append((name, data))
        size += len(data) + len(name)
        if size >= READ_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def as_item(item: BatchItem | Mapping[str, Any]) -> BatchItem:
    """Convert an item that may be given as a mapping to a BatchItem. BadRequest."""
    if isinstance(item, BatchItem):
        return item
    try:
        return msgspec.convert(item, BatchItem)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"invalid batch item: {problem}") from None
