"""One number for all that a job has written, the same for the same contents, however they are compressed."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from dfc.jobs.tasks import OutputRecord


def digest_in_order(outputs: Iterable[OutputRecord]) -> str:
    """xxh3-128, in hex, over `name \\0 size \\0 checksum` of the outputs, which come in the order of their names' bytes.

    Size in decimal digits and checksum (xxh3-128, in hex) are those of the uncompressed bytes. Nothing separates two outputs:
    a checksum has 32 characters always.
    """
    total = xxhash.xxh3_128()
    for output in outputs:
        total.update(f"{output.name}\0{output.content_size}\0{output.content_checksum}".encode())
    return total.hexdigest()
