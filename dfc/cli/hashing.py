"""The checksum of a local file, read in pieces so that Ctrl-C is heard."""

from __future__ import annotations

import xxhash

from dfc.client import Cancellation
from dfc.client.reader import BULK_READ_BYTES


def checksum_of_file(path: str, cancellation: Cancellation) -> str:
    """xxh3-128 in hex. OSError; Cancelled."""
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(BULK_READ_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            cancellation.check()
            hasher.update(buffer[:count])
    return hasher.hexdigest()
