"""The fields of a dataset, by the samples that were looked at. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dfc.proxy.shardviews import SampleRow
from dfc.ui.kinds import Kind, array_of, kind_of, text_of

PICKLES: Final = frozenset(("pyd", "pkl", "pickle", "pth"))  # whoever decodes them runs what is in them
NUMBERS: Final = frozenset(("cls", "cls2", "count", "index", "inx"))  # loaders make whole numbers of them
EXAMPLE_CHARS: Final = 60
SHORT_CHARS: Final = 12  # of values of which some are shown
EXAMPLES_SHOWN: Final = 4
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


class FieldFacts(NamedTuple):
    """A field: in how many samples it is, its smallest and largest size, all its bytes, and the beginning of one (empty: it
    was not looked at) and of `others`."""

    ext: str
    samples: int
    smallest: int
    largest: int
    total: int
    example: bytes = b""
    others: tuple[bytes, ...] = ()

    @property
    def kind(self) -> Kind:
        """What it is to a browser."""
        return kind_of(self.ext)

    @property
    def last(self) -> str:
        """The last part of the extension, which says what it is."""
        return self.ext.rpartition(".")[2].lower()

    @property
    def is_pickle(self) -> bool:
        """Whether decoding it could run a program."""
        return self.last in PICKLES

    @property
    def is_number(self) -> bool:
        """Whether loaders can make a whole number of it, as far as is known."""
        return self.last in NUMBERS and (not self.example or _WHOLE.fullmatch(self.text or "") is not None)

    @property
    def is_plain(self) -> bool:
        """Whether loaders must leave its bytes alone: by its name they would make a number of what is none."""
        return self.last in NUMBERS and not self.is_number

    @property
    def text(self) -> str:
        """The beginning of it as text; empty if it is none."""
        return text_of(self.example, is_whole=False) or ""

    @property
    def type(self) -> str:
        """What it is, in words."""
        if self.kind == "array":
            return array_of(self.example) or "array"
        if self.is_number and self.example:
            return "whole number"
        if self.last in ("json", "jsonl"):
            return "JSON"
        return self.kind

    @property
    def shown(self) -> str:
        """One line of text as an example, or several short ones; empty if it is no text."""
        if self.kind != "text":
            return ""
        line, *others = (" ".join((text_of(each, is_whole=False) or "").split()) for each in (self.example, *self.others))
        short = dict.fromkeys(each for each in (line, *others) if 0 < len(each) <= SHORT_CHARS)
        if line in short:
            return ", ".join(list(short)[:EXAMPLES_SHOWN])
        return line if len(line) <= EXAMPLE_CHARS else line[:EXAMPLE_CHARS] + "…"


def is_short(ext: str, size: int) -> bool:
    """Whether a field is a text of which several fit in a line, such as a class."""
    return 0 < size <= SHORT_CHARS and kind_of(ext) == "text"


def fields_of(rows: Iterable[SampleRow], *examples: Mapping[str, bytes]) -> list[FieldFacts]:
    """Add up the fields of samples, in the order in which they first occur. `examples`: the beginnings of some."""
    found: dict[str, FieldFacts] = {}
    for row in rows:
        for ext, field in row.members.items():
            size, known = field.size, found.get(ext)
            if known is None:
                example, *others = [some[ext] for some in examples if ext in some] or [b""]
                found[ext] = FieldFacts(ext, 1, size, size, size, example, tuple(others))
            else:
                found[ext] = known._replace(
                    samples=known.samples + 1,
                    smallest=min(known.smallest, size),
                    largest=max(known.largest, size),
                    total=known.total + size,
                )
    return list(found.values())
