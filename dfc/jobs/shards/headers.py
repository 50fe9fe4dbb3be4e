"""Makes the headers of canonical archives (dfc.tar.writer), many at once, from the names and sizes in an index.

Nothing is copied from the headers of the source, so equal names and contents always give equal bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dfc.limits import TAR_HEADER_BYTES
from dfc.tar.index.arrays import Bytes, Integers, SampleArrays
from dfc.tar.writer import member_header

_OCTAL_DIGITS: Final = 11
_OCTAL_SIZE_MAX: Final = 8**_OCTAL_DIGITS - 1
_SIZE_AT: Final = 124
_CHECKSUM_AT: Final = 148
_CHECKSUM_DIGITS: Final = 6  # of which the first is 0: 512 bytes add up to less than 8^6
_SHIFTS: Final = np.arange(3 * (_OCTAL_DIGITS - 1), -1, -3, dtype=np.int64)


def _blank() -> Bytes:
    """A header of the writer with zeros for name, size and checksum."""
    header = np.frombuffer(member_header("x", 0), dtype=np.uint8).copy()
    header[0] = 0
    header[_SIZE_AT : _SIZE_AT + _OCTAL_DIGITS] = 0
    header[_CHECKSUM_AT : _CHECKSUM_AT + _CHECKSUM_DIGITS] = 0
    return header


_BLANK: Final = _blank()
# The checksum counts its own eight bytes as spaces; the last one is a space in the header, too.
_BLANK_SUM: Final = int(_BLANK.sum()) + 7 * ord(" ")


def header_blocks(names: Bytes, sizes: Integers) -> Bytes:
    """Make headers (m, 512) for names (m, w) of at most 100 bytes, padded with zeros, and sizes below 8 GiB."""
    blocks = np.empty((len(names), TAR_HEADER_BYTES), dtype=np.uint8)
    blocks[:] = _BLANK
    digits = ((sizes[:, None] >> _SHIFTS) & 7).astype(np.uint8) + np.uint8(ord("0"))
    blocks[:, : names.shape[1]] = names
    blocks[:, _SIZE_AT : _SIZE_AT + _OCTAL_DIGITS] = digits
    sums = _BLANK_SUM + names.sum(axis=1, dtype=np.int64) + digits.sum(axis=1, dtype=np.int64)
    octal = ((sums[:, None] >> _SHIFTS[-_CHECKSUM_DIGITS:]) & 7).astype(np.uint8) + np.uint8(ord("0"))
    blocks[:, _CHECKSUM_AT : _CHECKSUM_AT + _CHECKSUM_DIGITS] = octal
    return blocks


def special_headers(samples: SampleArrays) -> dict[int, bytes]:
    """Make the headers that `header_blocks` cannot make, for long names and very large members, by member row."""
    special = {row: member_header(name.decode(), int(samples.sizes[row])) for row, name in samples.long_names.items()}
    for row in np.flatnonzero(samples.sizes > _OCTAL_SIZE_MAX).tolist():
        if row not in special:
            special[row] = member_header(samples.names[row].tobytes().rstrip(b"\0").decode(), int(samples.sizes[row]))
    return special


def padded(sizes: Integers) -> Integers:
    """Round sizes up to whole blocks."""
    return (sizes + (TAR_HEADER_BYTES - 1)) & -TAR_HEADER_BYTES


def head_sizes(samples: SampleArrays, special: dict[int, bytes]) -> Integers:
    """The size of the canonical header of each member in bytes."""
    sizes = np.full(len(samples.sizes), TAR_HEADER_BYTES, dtype=np.int64)
    for row, header in special.items():
        sizes[row] = len(header)
    return sizes


def sample_sizes(samples: SampleArrays) -> Integers:
    """The size of each sample in an output in bytes."""
    if not len(samples):
        return np.zeros(0, dtype=np.int64)
    return np.add.reduceat(head_sizes(samples, special_headers(samples)) + padded(samples.sizes), samples.first[:-1])


def _masks() -> NDArray[np.uint8]:
    return (np.arange(TAR_HEADER_BYTES) < np.arange(TAR_HEADER_BYTES)[:, None]).astype(np.uint8) * np.uint8(0xFF)


_MASKS: Final = _masks()  # row r keeps r bytes


def clear_padding(blocks: Bytes, last: Integers, sizes: Integers) -> None:
    """Zero the padding in the `last` blocks (rows of `blocks`) of data of these sizes, none of which may fill its block."""
    rows = blocks[last]
    rows &= _MASKS[sizes % TAR_HEADER_BYTES]
    blocks[last] = rows
