"""What clients and servers share: media types, headers, the default URL of a cluster; in its modules, what they send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, TypeVar

PROTOCOL: Final = 1  # what nodes of this version understand of each other; what is new to older ones raises it
DEFAULT_URL: Final = "http://127.0.0.1:8080"
OBJECTS_PATH: Final = "/v1/objects/"  # then BUCKET/NAME; the short form is /BUCKET/NAME

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
NDJSON: Final = "application/x-ndjson"
OCTETS: Final = "application/octet-stream"
TAR: Final = "application/x-tar"

CHECKSUM_HEADER: Final = "X-DFC-Checksum"  # of the object, as xxh3-128=HEX
COORDINATOR_HEADER: Final = "X-DFC-To-Coordinator"  # on a request that a proxy has passed on to the coordinator
HOP_HEADER: Final = "X-DFC-Hop"  # on a request that a node has passed on
ITEM_HEADER: Final = "X-DFC-Item"  # on an error of a batch: the number of the item that caused it
LOST_HEADER: Final = "X-DFC-Answer-Lost"  # on a 503: another node got the request and may have carried it out
MAP_HEADER: Final = "X-DFC-Map"  # on a request for an owner, and on its 421: the version of the sender's cluster map
NEXT_TOKEN_HEADER: Final = "X-DFC-Next-Token"  # on a page: where the next one begins
VERSION_HEADER: Final = "X-DFC-Version"  # of the object, as in the answer to its upload: later ones are greater
STALE_HEADER: Final = "X-DFC-Possibly-Stale"  # 1 on an answer of a target that has no lease: newer data may exist
SAMPLES_HEADER: Final = "X-DFC-Samples"  # on a shard: its number of samples
UNSAMPLED_HEADER: Final = "X-DFC-Unsampled"  # on a list of what is in a shard: its number of members of no sample
UNRANKED: Final = "unranked"  # among counts by bucket id: how many disks count by the replicas of before a move

T = TypeVar("T")
_preparing: Final = threading.Lock()
_prepared: Final[set[type]] = set()


def prepare_structs() -> None:
    """Have msgspec look at the fields of all structs of ours that are loaded, one after the other.

    It does that when a type is first decoded. If two threads come to it at once, the second finds a table that is half filled,
    and the process ends by a segmentation fault (msgspec 0.22). So call this before threads decode anything, and again after
    modules were loaded later. Cheap if there is nothing new.
    """
    import msgspec

    for kind in _below(msgspec.Struct):
        if kind.__module__.startswith("dfc."):
            prepared(kind)


def prepared(kind: type[T]) -> type[T]:
    """Return `kind`, once msgspec has looked at its fields, for processes that decode only a few kinds: clients and loaders."""
    import msgspec

    if kind not in _prepared:
        with _preparing, suppress(TypeError, NameError):  # one that is only ever encoded
            msgspec.msgpack.Decoder(kind)
        _prepared.add(kind)
    return kind


def _below(kind: type[object]) -> Iterator[type[object]]:
    found: list[type[object]] = kind.__subclasses__()
    for each in found:
        yield each
        yield from _below(each)
