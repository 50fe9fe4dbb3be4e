"""The rule of `dfc.tar.samples`, applied to many names at a time if they are plain, as names nearly always are."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dfc.limits import SAMPLE_RECORDS_MAX
from dfc.tar.header import FILE
from dfc.tar.headerbatch import PlainFiles
from dfc.tar.index.arrays import Bytes, Integers
from dfc.tar.samples import SampleGrouper

_RUN_MAX: Final = min(16, SAMPLE_RECORDS_MAX)  # members of a sample that are compared with each other, at one pass each
_DOT, _SLASH, _LINE = ord("."), ord("/"), ord("_")


def cut_files(grouper: SampleGrouper, files: PlainFiles) -> tuple[Integers, Integers]:
    """Like `SampleGrouper.cut`, for the names of these files, all of them ASCII."""
    text = files.text
    found = _key_lengths(text)
    if found is None:
        return _cut_one_by_one(grouper, files, 0)
    column, dot = _columns(text), found.astype(np.uint8)[:, None]
    keys = _rows(text * (column < dot))
    begins = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    first = 0
    early: tuple[Integers, Integers] | None = None
    if grouper.key == files.names[0][: int(found[0])].decode():  # its sample may continue
        first = int(begins[1]) if len(begins) > 1 else len(files)
        early = _cut_one_by_one(grouper, files, 0, first)
        begins = begins[1:]
        if not len(begins):
            return early
    longest = int(np.diff(begins, append=len(files)).max())
    capital = (text >= ord("A")) & (text <= ord("Z")) & (column > dot)
    wholes = _rows(text + (capital.view(np.uint8) << 5))[first:]
    if longest > _RUN_MAX or any(bool((wholes[step:] == wholes[:-step]).any()) for step in range(1, longest)):
        late = _cut_one_by_one(grouper, files, first)
    else:
        late = found[first:], begins
        last = int(begins[-1])
        key_chars = int(found[last])
        extensions = {name[key_chars + 1 :].decode().lower() for name in files.names[last:]}
        grouper.go_on(files.names[last][:key_chars].decode(), extensions, len(files) - last)
    if early is None:
        return late
    return np.concatenate([early[0], late[0]]), np.concatenate([early[1], late[1]])


def _key_lengths(text: Bytes) -> Integers | None:
    """The position of the first dot in each name; None unless it ends the key in all of them."""
    if text.shape[1] < 2:
        return None
    dots = text == _DOT
    found = dots.argmax(axis=1)
    rows = np.arange(len(text))
    plain = dots[rows, found] & (found > 0) & (text[rows, found - 1] != _SLASH)
    plain &= (text[:, 0] != _LINE) | (text[:, 1] != _LINE)
    if not plain.all():
        return None
    slashes = text == _SLASH
    slashes &= _columns(text) > found.astype(np.uint8)[:, None]
    return None if slashes.any() else found


def _columns(text: Bytes) -> Bytes:
    """The number of each column. It wraps around after 255, where names that fit into a header have only zeros."""
    return np.arange(text.shape[1], dtype=np.uint8)


def _rows(table: Bytes) -> NDArray[np.void]:
    """Each row as one comparable value."""
    table = np.ascontiguousarray(table)
    return table.view(np.dtype((np.void, table.shape[1]))).ravel()


def _cut_one_by_one(
    grouper: SampleGrouper, files: PlainFiles, first: int, stop: int | None = None
) -> tuple[Integers, Integers]:
    names = [name.decode() for name in files.names[first:stop]]
    chars, starts = grouper.cut(names, [FILE] * len(names))
    return np.array(chars, dtype=np.int64), np.array(starts, dtype=np.int64) + first
