"""The digest of a job: one checksum over all outputs, which does not depend on their compression."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from dfc.jobs.tasks import OutputRecord


def digest_in_order(outputs: Iterable[OutputRecord]) -> str:
    """Return the xxh3-128, in hex, over `name \\0 size \\0 checksum` of the outputs, which are in byte order of their names.

    Size (in decimal digits) and checksum (xxh3-128, in hex) are of the uncompressed bytes. There is no separator between
    outputs, because a checksum always has 32 characters.
    """
    total = xxhash.xxh3_128()
    for output in outputs:
        total.update(f"{output.name}\0{output.content_size}\0{output.content_checksum}".encode())
    return total.hexdigest()
