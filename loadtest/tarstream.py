"""Tar archives generated on the fly: millions of members without a file, and plain archives for the PUT rows."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadtest.bodies import Body, add_member

HEADER_BYTES = 512
BATCH = 4096  # headers made at once: 2 MiB
END = bytes(2 * HEADER_BYTES)
NAME_DIGITS = 8
_DIGITS_AT = len("empty/")
_CHECKSUM_AT = 148
_SPREAD_BYTES = 8 << 20
_STEP_BYTES = 1_000_003


def empty_members_size(members: int) -> int:
    """The size of the archive of `empty_members`, in bytes."""
    return members * HEADER_BYTES + len(END)


def empty_members(members: int) -> Iterator[memoryview]:
    """Generate a USTAR archive of `members` empty files `empty/00000000.cls`, in pieces of at most 2 MiB.

    The headers differ only in eight digits and the checksum, which is the template's sum plus that of the digits.
    """
    template = np.frombuffer(_template(), dtype=np.uint8)
    base_sum = int(template.sum()) - 8 * ord("0")  # the digits and the checksum field are added below
    for first in range(0, members, BATCH):
        numbers = np.arange(first, min(first + BATCH, members), dtype=np.int64)
        block = np.tile(template, (len(numbers), 1))
        digits = numbers[:, None] // 10 ** np.arange(NAME_DIGITS - 1, -1, -1, dtype=np.int64) % 10 + ord("0")
        block[:, _DIGITS_AT : _DIGITS_AT + NAME_DIGITS] = digits
        block[:, _CHECKSUM_AT : _CHECKSUM_AT + 6] = _octal(base_sum + digits.sum(axis=1))
        block[:, _CHECKSUM_AT + 6] = 0
        yield block.reshape(-1).data
    yield memoryview(END)


def _template() -> bytes:
    """A header by the standard library, with zeros for the digits and spaces for the checksum (as its definition says)."""
    info = tarfile.TarInfo("empty/" + "0" * NAME_DIGITS + ".cls")
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    header[_CHECKSUM_AT : _CHECKSUM_AT + 8] = b" " * 8
    return bytes(header)


def _octal(sums: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return sums[:, None] >> (3 * np.arange(5, -1, -1, dtype=np.int64)) & 7 | ord("0")


def tar_of(files: Iterable[tuple[str, bytes]]) -> bytes:
    """A USTAR archive of files in memory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files:
            add_member(archive, name, content)
    return buffer.getvalue()


def write_member_tar(path: Path, total_bytes: int, member_bytes: int) -> list[str]:
    """Write a USTAR archive of about `total_bytes` bytes with members of one size. Returns the member names."""
    names: list[str] = []
    with tarfile.open(path, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        step = HEADER_BYTES + -(-member_bytes // HEADER_BYTES) * HEADER_BYTES
        for number in range(max(1, total_bytes // step)):
            names.append(f"train/{number:08d}.jpg")
            add_member(archive, names[-1], Body(number, member_bytes).read())
    return names


def member_tar_bytes(members: int, member_bytes: int) -> bytes:
    """A small archive in memory, members as in `write_member_tar`."""
    return tar_of((f"train/{number:08d}.jpg", Body(number, member_bytes).read()) for number in range(members))


def sample_tar(samples: int, sample_bytes: int, *, first: int = 0, alphabet: int = 256) -> Iterator[bytes]:
    """Generate a USTAR archive of samples `s/00000000`, each a `.jpg` of `sample_bytes` pseudo-random bytes and a `.cls`.

    Numbers start at `first`. Bytes take `alphabet` values: 256 cannot be compressed, fewer can. Samples are cut out of some
    megabytes, each far enough from the previous one that no compressor sees a repetition.
    """
    chance = np.random.default_rng(first)
    block = chance.integers(0, alphabet, sample_bytes + _SPREAD_BYTES, dtype=np.uint8).tobytes()
    padding = bytes(-sample_bytes % HEADER_BYTES)
    class_padding = bytes(HEADER_BYTES - 3)
    image, label = tarfile.TarInfo(), tarfile.TarInfo()
    image.size, label.size = sample_bytes, 3
    for number in range(first, first + samples):
        image.name, label.name = f"s/{number:08d}.jpg", f"s/{number:08d}.cls"
        at = number * _STEP_BYTES % _SPREAD_BYTES
        yield b"".join(
            (
                image.tobuf(tarfile.USTAR_FORMAT),
                block[at : at + sample_bytes],
                padding,
                label.tobuf(tarfile.USTAR_FORMAT),
                b"%03d" % (number % 1000),
                class_padding,
            )
        )
    yield END


def sample_tar_size(samples: int, sample_bytes: int) -> int:
    """The size of the archive of `sample_tar`, in bytes."""
    return samples * (3 * HEADER_BYTES + -(-sample_bytes // HEADER_BYTES) * HEADER_BYTES) + len(END)
