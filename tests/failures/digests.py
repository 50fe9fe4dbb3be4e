"""Digests of samples, by which what was read is compared with what was stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xxhash


def digest_of(sample: Mapping[str, Any]) -> str:
    """Of all bytes of an undecoded sample."""
    found = xxhash.xxh3_128()
    for name in sorted(name for name in sample if not name.startswith("__")):
        found.update(b"%s %d " % (name.encode(), len(sample[name])))
        found.update(sample[name])
    return found.hexdigest()
