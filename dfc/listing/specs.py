"""Shard specs, which stand for many shard names, and patterns of output names. No I/O.

| spec | means |
| --- | --- |
| a list | exactly these names, unchanged; as text it is a JSON list, `["a.tar", "b.tar"]` |
| `train-@000147.tar` | a count: `train-000000.tar` to `train-000146.tar`, as wide as the digits; the last `@digits` counts |
| `train-{000000..000146}.tar`, `{train,val}.tar` | brace patterns as bash has them: ranges with a step, choices, nesting |
| `train-*.tar`, `**/x-[0-9]?.tar` | a glob: `*` and `?` stay within one path segment, `**` stands for any number of segments |
| `imagenet/` | a prefix: everything below it |

A spec is expanded in that order: first the count, then braces; what still has a wildcard then is a `Glob`. Everything is
counted before it is built, so that a short spec cannot take much memory.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise, product
from math import prod
from typing import Final
from urllib.parse import quote

import msgspec

from dfc.errors import BadRequest, BadShardSpec
from dfc.limits import (
    SHARD_LIST_CHARS_MAX,
    SHARD_SPEC_CHARS_MAX,
    SHARD_SPEC_DEPTH_MAX,
    SHARD_SPEC_EXPANDED_CHARS_MAX,
    SHARD_SPEC_GLOBS_MAX,
    SHARD_SPEC_NAMES_MAX,
)
from dfc.names import check_object_name

_COUNT: Final = re.compile(r"(.*)@([0-9]+)(.*)", re.DOTALL)
_NUMBERS: Final = re.compile(r"(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.(-?[0-9]+))?")
_LETTERS: Final = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?[0-9]+))?")
_WILDCARD: Final = re.compile(r"[*?\[]")
_SHARD_NUMBER: Final = re.compile(r"%(?:0(\d{1,2}))?d")  # not %20d: in a URL that is a space and a d
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)([^?#]*)(.*)", re.DOTALL)
_NUMBER_DIGITS_MAX: Final = 18  # a range end fits in 64 bits; a longer run of digits is a mistake


@dataclass(frozen=True)
class Prefix:
    """Every object whose name starts with `prefix`, which ends in `/`."""

    prefix: str

    def matches(self, name: str) -> bool:
        return name.startswith(self.prefix)


@dataclass(frozen=True)
class Glob:
    """Every object whose name matches one of the patterns; a pattern ending in `/` is a prefix."""

    patterns: tuple[str, ...]
    _regexes: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_regexes", tuple(re.compile(_glob_regex(pattern)) for pattern in self.patterns))

    @cached_property
    def prefix(self) -> str:
        """The common prefix of all matching names: where a sorted scan begins and ends."""
        return posixpath.commonprefix([_WILDCARD.split(pattern, maxsplit=1)[0] for pattern in self.patterns])

    def matches(self, name: str) -> bool:
        """Whether a name matches. Linear in its length, whatever the pattern: stars never backtrack."""
        return any(regex.fullmatch(name) for regex in self._regexes)


Selection = list[str] | Glob | Prefix


def expand(spec: str | Sequence[str]) -> Selection:
    """Expand a spec into names, or into the `Glob` or `Prefix` that selects them from a listing.

    Raises BadShardSpec when it is malformed or expands to more than SHARD_SPEC_NAMES_MAX names.
    """
    if not isinstance(spec, str):
        return _check_list(spec)
    if spec.startswith('["'):
        try:
            return _check_list(msgspec.json.decode(spec, type=list[str]))
        except msgspec.MsgspecError as problem:
            raise BadShardSpec(f"the shard spec starts like a JSON list but is not one: {problem}") from None
    names = _expand_text(spec)
    if len(names) == 1 and names[0].endswith("/") and not _WILDCARD.search(names[0]):
        return Prefix(names[0])
    if any(name.endswith("/") or _WILDCARD.search(name) for name in names):
        if len(names) > SHARD_SPEC_GLOBS_MAX:
            raise BadShardSpec(f"a spec with wildcards may expand to at most {SHARD_SPEC_GLOBS_MAX} patterns, not {len(names)}")
        return Glob(tuple(names))
    return names


def check(spec: str | Sequence[str]) -> None:
    """Raise what `expand` would, without building the names: for event loops, where a million names would take too long."""
    if isinstance(spec, str) and not spec.startswith('["'):
        _parse(spec)
    else:
        expand(spec)


def list_specs(names: Iterable[str]) -> Iterator[str]:
    """Split a list of names into specs that each fit into a request line."""
    group: list[str] = []
    chars = 0
    for name in names:
        cost = len(quote(name)) + len("%22%2C%22")
        if group and chars + cost > SHARD_LIST_CHARS_MAX:
            yield msgspec.json.encode(group).decode()
            group, chars = [], 0
        group.append(name)
        chars += cost
    if group:
        yield msgspec.json.encode(group).decode()


def expand_url(url: str) -> list[str]:
    """Expand a count or braces in the path of a URL; host, query and escapes stay as they are.

    A path without scheme and host is expanded as a whole. Wildcards are left alone: a URL cannot be listed here.
    """
    match = _URL.fullmatch(url)
    if match is None:
        return _expand_text(url)
    head, path, tail = match.groups()
    return [head + expanded + tail for expanded in _expand_text(path)] if path else [url]


def is_plain(spec: str) -> bool:
    """Whether the text is a single name, with nothing to expand."""
    return not (_COUNT.fullmatch(spec) or _WILDCARD.search(spec) or "{" in spec or "}" in spec or spec.endswith("/"))


def _check_list(names: Sequence[str]) -> list[str]:
    if len(names) > SHARD_SPEC_NAMES_MAX:
        raise BadShardSpec(f"too many shards named: {len(names)}, at most {SHARD_SPEC_NAMES_MAX} are allowed")
    if not all(isinstance(name, str) and name for name in names):
        raise BadShardSpec("a list of shards must contain only names")
    return list(names)


def _expand_text(spec: str) -> list[str]:
    return list(_parse(spec).texts())


def _parse(spec: str) -> _Sequence:
    if not spec:
        raise BadShardSpec("the shard spec is empty")
    if len(spec) > SHARD_SPEC_CHARS_MAX:
        raise BadShardSpec(f"the shard spec is too long: {len(spec)} characters, at most {SHARD_SPEC_CHARS_MAX} are allowed")
    match = _COUNT.fullmatch(spec)
    if match is None:
        return _checked(spec, _Sequence(_parse_level(spec, 0)))
    head, digits, tail = match.groups()
    if head.count("{") != head.count("}"):
        raise BadShardSpec(f"a count must be outside of braces: {spec[:80]!r}")
    count = _number(digits)
    if count == 0:
        raise BadShardSpec(f"the count of shards is zero: {spec[:80]!r}")
    before, after = _parse_level(head, 0), _parse_level(tail, 0)
    # The count is expanded first, then the braces of each result: the number changes slowest.
    return _checked(spec, _Sequence([*before, _Numbers(range(count), len(digits)), *after], slowest=len(before)))


def _checked(spec: str, sequence: _Sequence) -> _Sequence:
    if sequence.count > SHARD_SPEC_NAMES_MAX:
        raise BadShardSpec(f"{spec[:80]!r} expands to more than {SHARD_SPEC_NAMES_MAX} shards")
    if sequence.count * sequence.chars > SHARD_SPEC_EXPANDED_CHARS_MAX:
        raise BadShardSpec(f"{spec[:80]!r} expands to more than {SHARD_SPEC_EXPANDED_CHARS_MAX} characters of names")
    return sequence


def has_number(text: str) -> bool:
    """Whether a name contains a placeholder for the shard number: `%06d`, `%d`."""
    return _SHARD_NUMBER.search(text) is not None


def with_number(text: str, number: int) -> str:
    """Return the name of shard `number` for a text with `%06d` or `%d` in it; wider numbers are written in full."""
    return _SHARD_NUMBER.sub(lambda found: f"{number:0{int(found[1] or 1)}d}", text)


class ShardPattern:
    """A URL or path with exactly one placeholder for a shard number; ValueError otherwise."""

    def __init__(self, text: str) -> None:
        if len(_SHARD_NUMBER.findall(text)) != 1:
            raise ValueError(f"a name for shards must contain one number, as in train-%06d.tar, not {text!r}")
        self._text = text

    def text(self, number: int) -> str:
        """Return the name of shard `number`."""
        return with_number(self._text, number)


# --- Parts of a spec: the number of its alternatives, the length of the longest, and, on demand, the texts.


class _Text:
    """A fixed text."""

    count = 1

    def __init__(self, text: str) -> None:
        self.chars = len(text)
        self._text = text

    def texts(self) -> Iterable[str]:
        return (self._text,)


class _Numbers:
    """A range of numbers, padded to a width, or of letters by their code points."""

    def __init__(self, numbers: range, width: int = 0, *, letters: bool = False) -> None:
        self.count = len(numbers)
        self.chars = 1 if letters else max(width, len(str(numbers[0])), len(str(numbers[-1])))
        self._numbers, self._width, self._letters = numbers, width, letters

    def texts(self) -> Iterable[str]:
        return map(chr, self._numbers) if self._letters else (_padded(number, self._width) for number in self._numbers)


class _Choice:
    """The alternatives of a brace, each a sequence of its own."""

    def __init__(self, alternatives: list[_Sequence]) -> None:
        self.count: int = sum(each.count for each in alternatives)
        self.chars: int = max(each.chars for each in alternatives)
        self._alternatives = alternatives

    def texts(self) -> Iterable[str]:
        return chain.from_iterable(each.texts() for each in self._alternatives)


_Part = _Text | _Numbers | _Choice


class _Sequence:
    """Parts in a row, expanded so that part `slowest` changes slowest and the others vary from the right."""

    def __init__(self, parts: list[_Part], slowest: int = 0) -> None:
        self.count = prod(part.count for part in parts)
        self.chars = sum(part.chars for part in parts)
        self._parts, self._slowest = parts, slowest

    def texts(self) -> Iterable[str]:
        texts = [part.texts() for part in self._parts]
        at = self._slowest
        if not at:
            return map("".join, product(*texts))
        moved = product(texts[at], *texts[:at], *texts[at + 1 :])
        return ("".join((*choice[1 : at + 1], choice[0], *choice[at + 1 :])) for choice in moved)


def _padded(number: int, width: int) -> str:
    return f"-{-number:0{max(width - 1, 0)}d}" if number < 0 else f"{number:0{width}d}"


def _parse_level(text: str, depth: int) -> list[_Part]:
    """Parse a text into the parts of its outermost level."""
    if depth > SHARD_SPEC_DEPTH_MAX:
        raise BadShardSpec(f"braces are nested more than {SHARD_SPEC_DEPTH_MAX} levels deep")
    parts: list[_Part] = []
    at = 0
    while at < len(text):
        start = text.find("{", at)
        plain = text[at:] if start < 0 else text[at:start]
        if "}" in plain:
            raise BadShardSpec(f"'}}' without '{{' in {text[:80]!r}")
        if plain:
            parts.append(_Text(plain))
        if start < 0:
            break
        commas, end = _scan_brace(text, start)
        parts.extend(_parse_brace(text, start, commas, end, depth))
        at = end + 1
    return parts


def _scan_brace(text: str, start: int) -> tuple[list[int], int]:
    """Find the commas at the level of the brace that opens at `start`, and its closing brace."""
    depth = 0
    commas: list[int] = []
    for at in range(start, len(text)):
        char = text[at]
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return commas, at
        elif char == "," and depth == 1:
            commas.append(at)
    raise BadShardSpec(f"'{{' is never closed in {text[:80]!r}")


def _parse_brace(text: str, start: int, commas: list[int], end: int, depth: int) -> list[_Part]:
    inner = text[start + 1 : end]
    if not commas:
        numbers = _parse_range(inner)
        if numbers is not None:
            return [numbers]
        # As in bash, braces around a single item are literal.
        return [_Text("{"), *_parse_level(inner, depth + 1), _Text("}")]
    edges = [start, *commas, end]
    return [_Choice([_Sequence(_parse_level(text[left + 1 : right], depth + 1)) for left, right in pairwise(edges)])]


def _parse_range(text: str) -> _Numbers | None:
    match = _NUMBERS.fullmatch(text)
    if match is not None:
        first, last = match[1], match[2]
        padded = any(end.lstrip("-").startswith("0") and len(end.lstrip("-")) > 1 for end in (first, last))
        width = max(len(first), len(last)) if padded else 0
        return _Numbers(_range(_number(first), _number(last), match[3]), width)
    match = _LETTERS.fullmatch(text)
    return None if match is None else _Numbers(_range(ord(match[1]), ord(match[2]), match[3]), letters=True)


def _range(first: int, last: int, step_text: str | None) -> range:
    step = abs(_number(step_text)) if step_text else 1
    if step == 0:
        raise BadShardSpec("the step of a range must not be zero")
    return range(first, last + 1, step) if first <= last else range(first, last - 1, -step)


def _number(digits: str) -> int:
    if len(digits) > _NUMBER_DIGITS_MAX:
        raise BadShardSpec(f"a number in the shard spec has {len(digits)} digits; at most {_NUMBER_DIGITS_MAX} are allowed")
    return int(digits)


def _glob_regex(pattern: str) -> str:
    """Translate a glob into a regular expression for `fullmatch` that never backtracks.

    A star inside a segment takes the nearest position where the text after it matches, and keeps it (an atomic group); that is
    enough, since a later position never helps. The last star of a segment is fixed by the end of the segment. `**` does the
    same with segments.
    """
    tail = "(?s:.*)" if pattern.endswith("/") else ""
    segments = pattern.rstrip("/").split("/") if tail else pattern.split("/")
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment == "**":
            runs.append([])
        else:
            runs[-1].append(_segment_regex(segment))
    if tail:
        runs[-1].append(tail)
    if len(runs) == 1:
        return "/".join(runs[0])
    any_segments = "(?:[^/]*/)*"
    head = "".join(f"{segment}/" for segment in runs[0])
    middle = "".join("(?>" + any_segments + "?" + "".join(f"{segment}/" for segment in run) + ")" for run in runs[1:-1] if run)
    last = "/".join(runs[-1]) if runs[-1] else "(?s:.+)"
    return head + middle + any_segments + last


def _segment_regex(segment: str) -> str:
    pieces = [""]
    at = 0
    while at < len(segment):
        char = segment[at]
        if char == "*":
            pieces.append("")
            at += 1
            continue
        end = segment.find("]", at + (3 if segment[at + 1 : at + 2] in ("!", "^") else 2)) if char == "[" else -1
        if char == "?":
            pieces[-1] += "[^/]"
        elif end > 0:
            pieces[-1] += _class_regex(segment[at + 1 : end])
            at = end
        else:
            pieces[-1] += re.escape(char)
        at += 1
    if len(pieces) == 1:
        return pieces[0]
    middle = "".join(f"(?>[^/]*?{piece})" for piece in pieces[1:-1] if piece)
    return f"{pieces[0]}{middle}[^/]*{pieces[-1]}"


def _class_regex(inner: str) -> str:
    negated = inner[0] in "!^"
    items = inner[1:] if negated else inner
    allowed = []
    at = 0
    while at < len(items):
        if items[at + 1 : at + 2] == "-" and at + 2 < len(items):
            if items[at] <= items[at + 2]:
                allowed.append(f"{re.escape(items[at])}-{re.escape(items[at + 2])}")
            at += 3
        else:
            allowed.append(re.escape(items[at]))
            at += 1
    if not allowed:
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' if negated else ''}{''.join(allowed)}]"


# --- Patterns of output names: `%06d` is the number of a shard, `{part}` the name of a part of a split. Pure; no I/O.

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
        return posixpath.commonprefix([re.split("[%{]", text, maxsplit=1)[0] for text in _texts(self)])


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
