"""Computes the checksum of a local file, in pieces so that Ctrl-C works."""

from __future__ import annotations

import xxhash

from dfc.http.calls.retry import Cancellation
from dfc.client.reader import BULK_READ_BYTES


def checksum_of_file(path: str, cancellation: Cancellation) -> str:
    """Return the xxh3-128 of a file in hex. OSError; Cancelled."""
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(BULK_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            cancellation.check()
            hasher.update(buffer[:count])
    return hasher.hexdigest()
