"""What an object has besides its name and bytes: content type, user metadata, further digests. A map in msgpack.

The storage engine keeps the encoded form and never looks into it, and what copies an object copies that form. So fields that a
newer version of DFC has written survive in an older one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dfc.errors import BadRequest
from dfc.limits import ATTRIBUTES_BYTES_MAX


class Attributes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`metadata` are the user's own words by lower-case name. `digests` are others than xxh3-128, as lower-case hex by name:
    `md5`, `crc32c`, `sha256`."""

    content_type: str = ""
    metadata: dict[str, str] = {}
    digests: dict[str, str] = {}

    def encode(self) -> bytes:
        """Empty when there is nothing to say; the same bytes for the same attributes. BadRequest when it is too long."""
        if self == NO_ATTRIBUTES:
            return b""
        encoded = _ENCODER.encode(self)
        check_attributes(encoded)
        return encoded

    @classmethod
    def decode(cls, encoded: bytes) -> Attributes:
        """The known fields; msgspec.DecodeError when it is no such map."""
        return _DECODER.decode(encoded) if encoded else NO_ATTRIBUTES


def check_attributes(encoded: bytes) -> None:
    """BadRequest when it is longer than an object may have."""
    if len(encoded) > ATTRIBUTES_BYTES_MAX:
        raise BadRequest(f"the object's attributes are too large: {len(encoded)} bytes, at most {ATTRIBUTES_BYTES_MAX} are allowed")


NO_ATTRIBUTES: Final = Attributes()
_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: Final = msgspec.msgpack.Decoder(Attributes)
