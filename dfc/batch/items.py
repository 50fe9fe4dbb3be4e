"""Batch reads: the list of items, and the lengths before the bytes. Used by nodes and clients; no I/O."""

from __future__ import annotations

import sys
from array import array
from typing import Annotated, Any, Final, Literal

import msgspec

from dfc.errors import BadRequest, DfcError, TooLarge
from dfc.limits import BATCH_ITEMS_MAX
from dfc.names import check_bucket_name, check_object_name
from dfc.wire import MSGPACK, prepared

OnMissing = Literal["fail", "skip", "empty"]
LONG: Final = 2000  # items; what is done for each of more than these is done in a thread
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class BatchItem(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One item: a member, a sample by key or ordinal, or, without any of these, the whole object. `start` and `length` select
    a range of a member or an object."""

    bucket: str
    object: str
    member: str | None = None
    sample: str | None = None
    number: _Count | None = None
    start: _Count | None = None
    length: _Count | None = None
    if_match: str | None = None

    def __post_init__(self) -> None:
        """ValueError if what is given excludes each other. As this runs between the items of a long list that is decoded, other
        threads get the interpreter in between."""
        if self.member is None and self.sample is None and self.start is None and self.length is None:
            return
        if (self.member is not None) + (self.sample is not None) + (self.number is not None) > 1:
            raise ValueError("give only one of member, sample and number, or none for the whole object")
        if (self.start is not None or self.length is not None) and (self.sample is not None or self.number is not None):
            raise ValueError("start and length apply to a member or an object; a sample is always whole")


class BatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a batch read."""

    items: list[BatchItem]
    on_missing: OnMissing = "fail"


def free(items: list[Any]) -> None:
    """Empty a long list for good, in a thread: so many objects at a time hold the interpreter for long."""
    while items:
        del items[-LONG:]


def parse_request(body: bytes, content_type: str = "") -> BatchRequest:
    """Decode a request and check its form, not whether its items exist."""
    packed = content_type.partition(";")[0].strip().lower() in (MSGPACK, "application/x-msgpack")
    try:
        request: BatchRequest = (msgspec.msgpack if packed else msgspec.json).decode(body, type=BatchRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "batch" if isinstance(error, msgspec.ValidationError) else "msgpack" if packed else "JSON"
        raise BadRequest(f"invalid {what}: {error}") from None
    if len(request.items) > BATCH_ITEMS_MAX:
        raise TooLarge(f"a batch has at most {BATCH_ITEMS_MAX} items, not {len(request.items)}")
    try:
        for bucket, name in {(item.bucket, item.object) for item in request.items}:
            check_bucket_name(bucket)
            check_object_name(name)
    except DfcError:
        free(request.items)  # not where the error is handled
        raise
    return request


# --- The preamble of a batch: the length of each item and, between nodes, the checksums of their objects. Pure.

PREAMBLE_BYTES_MAX: Final = BATCH_ITEMS_MAX * (8 + 1200)  # for each item a length and, at worst, its own object


class Preamble(msgspec.Struct, frozen=True):
    """The length of each item, as 64-bit little-endian numbers, and checksums of objects."""

    lengths: bytes
    objects: list[tuple[str, str, str]]  # bucket, object, checksum


def encode_preamble(lengths: bytes, checksums: dict[tuple[str, str], str]) -> bytes:
    """Encode the preamble, with its own length in front in four bytes, big-endian."""
    packed = msgspec.msgpack.encode(Preamble(lengths, [(*key, checksum) for key, checksum in checksums.items()]))
    return len(packed).to_bytes(4, "big") + packed


def preamble_bytes(begin: bytes | bytearray, length: int) -> int:
    """The length of the preamble, from the first four bytes of a body of `length` bytes. ValueError if it is not a batch."""
    size = int.from_bytes(begin[:4], "big")
    if size > min(PREAMBLE_BYTES_MAX, length - 4):
        raise ValueError("not the preamble of a batch")
    return size


def decode_preamble(content: bytes | bytearray) -> tuple[array[int], dict[tuple[str, str], str]]:
    """Decode the preamble. Run it in a thread: a hundred thousand objects take a tenth of a second. Raises ValueError."""
    try:
        preamble = msgspec.msgpack.decode(content, type=prepared(Preamble))
    except RecursionError:
        raise ValueError("not the preamble of a batch") from None
    return array("Q", preamble.lengths), {(bucket, name): checksum for bucket, name, checksum in preamble.objects}


def little_endian(lengths: array[int]) -> array[int]:
    """Convert lengths to or from the little-endian form that clients get, without a preamble. Changes and returns the array."""
    if sys.byteorder == "big":
        lengths.byteswap()
    return lengths
