"""Patterns of output names: `%06d` is the number of a shard, `{part}` the name of a part of a split. Pure; no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from dfc.errors import BadRequest
from dfc.names import check_object_name
from dfc.shards import with_number

PART_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NUMBER: Final = re.compile(r"%0[1-9]d")
_SHARD_NUMBER_MAX: Final = 10**12


@dataclass(frozen=True)
class OutputPattern:
    """A pattern: `text` has at most one `%0Nd` (N from 1 to 9; larger numbers become wider) and at most one `{part}`.

    `others`: names of further outputs, or patterns of them with the number of `text`.
    """

    text: str
    others: tuple[str, ...] = ()
    _regex: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _others: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(_NUMBER.findall(self.text)) > 1 or self.text.count("{part}") > 1:
            raise BadRequest("an output pattern can have at most one number and one {part}")
        rest = _NUMBER.sub("", self.text).replace("{part}", "")
        if "%" in rest or "{" in rest or "}" in rest:
            raise BadRequest(f"an output pattern can contain %0Nd and {{part}}, but no other '%' or brace: {self.text[:80]!r}")
        check_object_name((self.name(0, part="part")).rstrip("/"))
        regex = re.escape(self.text).replace(re.escape("{part}"), f"(?P<part>{PART_NAME.pattern})")
        object.__setattr__(self, "_regex", re.compile(_NUMBER.sub("[0-9]+", regex)))
        others = "|".join(_NUMBER.sub("[0-9]+", re.escape(other)) for other in self.others)
        object.__setattr__(self, "_others", re.compile(others or "(?!)"))

    @property
    def is_numbered(self) -> bool:
        return _NUMBER.search(self.text) is not None

    @property
    def has_part(self) -> bool:
        return "{part}" in self.text

    @property
    def is_prefix(self) -> bool:
        """Whether it is the prefix of a directory tree."""
        return self.text.endswith("/")

    def name(self, number: int = 0, *, part: str = "") -> str:
        """Return the name of one output. ValueError for a number below 0 or absurdly large."""
        if not 0 <= number < _SHARD_NUMBER_MAX:
            raise ValueError(f"the number of a shard must be from 0 to {_SHARD_NUMBER_MAX - 1}, not {number}")
        return with_number(self.text.replace("{part}", part), number)

    def matches(self, name: str) -> bool:
        """Whether an object with this name could be one of the outputs."""
        return self._others.fullmatch(name) is not None or (
            name.startswith(self.text)
            if self.is_prefix and not self.has_part
            else self._regex.match(name) is not None and (self.is_prefix or self._regex.fullmatch(name) is not None)
        )

    @property
    def literal(self) -> str:
        """The common prefix of all names of outputs, to limit a listing."""
        starts = [re.split("[%{]", text, maxsplit=1)[0] for text in (self.text, *self.others)]
        low, high = min(starts), max(starts)
        same = next((at for at, (left, right) in enumerate(zip(low, high, strict=False)) if left != right), len(low))
        return low[:same]


def may_meet(one: OutputPattern, other: OutputPattern) -> bool:
    """Whether two patterns could name the same object. May return True needlessly for patterns with parts."""
    return any(_texts_may_meet(OutputPattern(mine), OutputPattern(its)) for mine in _texts(one) for its in _texts(other))


def _texts(pattern: OutputPattern) -> tuple[str, ...]:
    return (pattern.text, *pattern.others)


def _texts_may_meet(one: OutputPattern, other: OutputPattern) -> bool:
    shorter, longer = sorted((one.literal, other.literal), key=len)
    if not longer.startswith(shorter):
        return False
    if one.text == other.text or one.has_part or other.has_part or one.is_prefix or other.is_prefix:
        return True
    if one.is_numbered and other.is_numbered:
        shorter, longer = sorted((_NUMBER.split(pattern.text)[-1] for pattern in (one, other)), key=len)
        return longer.endswith(shorter)
    return one.matches(other.name(0)) or other.matches(one.name(0))
