"""Sizes in the units that people read."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def format_size(size: float) -> str:
    """Format a size like `1.2 GB`, in powers of 1000."""
    unit = 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size /= 1000
        unit += 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"
