"""Checksums: xxh3-128 for every object (hex, 32 digits, the ETag), xxh3-64 for placement and index hashes, MD5 on request."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Final

import xxhash

from dfc.errors import BadRequest, ChecksumMismatch

Buffer = bytes | bytearray | memoryview  # collections.abc.Buffer needs Python 3.12
CHECKSUM_NAME: Final = "xxh3-128"
_HEX: Final = re.compile(r"[0-9a-f]{32}")


def checksum_of(data: Buffer) -> str:
    """Return the xxh3-128 of the bytes as 32 lower-case hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def is_checksum(text: str) -> bool:
    """Whether the text has the form of an xxh3-128."""
    return _HEX.fullmatch(text) is not None


def hash64(text: str) -> int:
    """Return the xxh3-64 of a text in UTF-8, with seed 0."""
    return xxhash.xxh3_64_intdigest(text.encode())


@dataclass(frozen=True, slots=True)
class ExpectedChecksums:
    """The checksums that a client sent for its body: `X-DFC-Checksum: xxh3-128=HEX`, `Content-MD5: base64`."""

    xxh3_128: str | None = None
    md5: bytes | None = None

    @classmethod
    def from_headers(cls, checksum: str | None, content_md5: str | None) -> ExpectedChecksums:
        """Parse the two headers; BadRequest when one is malformed."""
        xxh3 = md5 = None
        if checksum is not None:
            kind, _, value = checksum.strip().partition("=")
            value = value.strip().lower()
            if kind.strip().lower() != CHECKSUM_NAME or not is_checksum(value):
                raise BadRequest(f"X-DFC-Checksum must be '{CHECKSUM_NAME}=' followed by 32 hexadecimal digits")
            xxh3 = value
        if content_md5 is not None:
            try:
                md5 = base64.b64decode(content_md5.strip(), validate=True)
            except (binascii.Error, ValueError):
                md5 = b""
            if len(md5) != 16:
                raise BadRequest("Content-MD5 must be the base64 encoding of 16 bytes")
        return cls(xxh3, md5)


class BodyHasher:
    """Hashes a body as it arrives. MD5 runs only when the client sent one, because it is ten times slower."""

    def __init__(self, expected: ExpectedChecksums) -> None:
        self._expected = expected
        self._xxh3 = xxhash.xxh3_128()
        self._md5 = hashlib.md5(usedforsecurity=False) if expected.md5 is not None else None

    def update(self, data: Buffer) -> None:
        self._xxh3.update(data)
        if self._md5 is not None:
            self._md5.update(data)

    def finish(self) -> str:
        """Return the xxh3-128 in hex; ChecksumMismatch when it, or the MD5, is not what the client sent."""
        digest = self._xxh3.hexdigest()
        if self._expected.xxh3_128 not in (None, digest):
            raise ChecksumMismatch(f"the body's checksum is {CHECKSUM_NAME}={digest}, expected {self._expected.xxh3_128}")
        if self._md5 is not None and self._md5.digest() != self._expected.md5:
            raise ChecksumMismatch("the body does not match Content-MD5")
        return digest
