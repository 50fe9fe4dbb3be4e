"""Attributes of an object: content type, user metadata and further digests, encoded as a msgpack map.

The storage engine stores the encoded form without looking into it, and copying an object copies that form. So fields written by
a newer version of DFC survive in an older one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dfc.errors import BadRequest
from dfc.limits import ATTRIBUTES_BYTES_MAX


class Attributes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The attributes of one object.

    `metadata` maps lower-case names to the user's values. `digests` maps names (`md5`, `crc32c`, `sha256`) to lower-case hex;
    the xxh3-128 is not among them."""

    content_type: str = ""
    metadata: dict[str, str] = {}
    digests: dict[str, str] = {}

    def encode(self) -> bytes:
        """Encode deterministically; no attributes give empty bytes. BadRequest when the result is too long."""
        if self == NO_ATTRIBUTES:
            return b""
        encoded = _ENCODER.encode(self)
        check_attributes(encoded)
        return encoded

    @classmethod
    def decode(cls, encoded: bytes) -> Attributes:
        """Decode the known fields; msgspec.DecodeError when the bytes are not such a map."""
        return _DECODER.decode(encoded) if encoded else NO_ATTRIBUTES


def check_attributes(encoded: bytes) -> None:
    """Raise BadRequest when the encoded attributes are longer than allowed."""
    if len(encoded) > ATTRIBUTES_BYTES_MAX:
        raise BadRequest(
            f"the object's attributes are too large: {len(encoded)} bytes, at most {ATTRIBUTES_BYTES_MAX} are allowed"
        )


NO_ATTRIBUTES: Final = Attributes()
_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: Final = msgspec.msgpack.Decoder(Attributes)
