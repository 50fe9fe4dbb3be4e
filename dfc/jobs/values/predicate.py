"""Conditions on samples, as JSON: `{"all": […]}`, `{"any": […]}`, `{"not": …}` over `{"field", "op", "value"}`.

A field is `key`, `size:EXT` (bytes), `EXT` (the text of a member) or `EXT:path` (the value at a path in its JSON). A comparison
with a field that is absent, or of another type than the value, is false.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dfc.errors import BadRequest
from dfc.jobs.values.fields import Absent, Fields, value_at
from dfc.jobs.values.regex import Regex
from dfc.limits import JOB_PREDICATE_DEPTH_MAX, JOB_PREDICATE_PARTS_MAX

Op = Literal["eq", "ne", "lt", "le", "gt", "ge", "in", "contains", "starts_with", "ends_with", "matches", "exists"]
Value = str | int | float | bool | None | list[str | int | float | bool | None]
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE_CHARS_MAX: Final = 1000
_MISSING: Final = object()
Test = Callable[[Fields, int], bool]


class Condition(Struct, frozen=True, forbid_unknown_fields=True):
    """One of `all`, `any`, `not`, or a comparison."""

    all: list[Condition] | UnsetType = UNSET
    any: list[Condition] | UnsetType = UNSET
    not_: Condition | UnsetType = msgspec.field(default=UNSET, name="not")
    field: str | UnsetType = UNSET
    op: Op | UnsetType = UNSET
    value: Value | UnsetType = UNSET


class Predicate:
    """A checked condition. It needs the bytes of the extensions in `wanted`, and the sizes of those in `sized`."""

    def __init__(self, node: Condition) -> None:
        self.wanted: list[str] = []
        self.sized: list[str] = []
        self._nodes = 0
        self._test = self._compile(node, 0)

    def holds(self, fields: Fields, i: int) -> bool:
        """Whether sample i of `fields` meets the condition."""
        return self._test(fields, i)

    def _compile(self, node: Condition, depth: int) -> Test:
        self._nodes += 1
        if depth > JOB_PREDICATE_DEPTH_MAX or self._nodes > JOB_PREDICATE_PARTS_MAX:
            raise BadRequest(
                f"a predicate can have at most {JOB_PREDICATE_PARTS_MAX} parts, nested at most {JOB_PREDICATE_DEPTH_MAX} deep"
            )
        given = [name for name in node.__struct_fields__ if getattr(node, name) is not UNSET]
        if isinstance(node.all, list) and given == ["all"]:
            tests = [self._compile(each, depth + 1) for each in node.all]
            return lambda fields, i: all(test(fields, i) for test in tests)
        if isinstance(node.any, list) and given == ["any"]:
            tests = [self._compile(each, depth + 1) for each in node.any]
            return lambda fields, i: any(test(fields, i) for test in tests)
        if isinstance(node.not_, Condition) and given == ["not_"]:
            test = self._compile(node.not_, depth + 1)
            return lambda fields, i: not test(fields, i)
        if not isinstance(node.field, str) or isinstance(node.op, UnsetType) or not set(given) <= {"field", "op", "value"}:
            raise BadRequest("each part of a predicate must be one of all, any, not, or field with op and value")
        if (node.op == "exists") != isinstance(node.value, UnsetType):
            raise BadRequest(f"{node.op} takes {'no' if node.op == 'exists' else 'a'} value")
        read, typed = self._reader(node.field)
        return _comparison(read, typed, node.op, None if isinstance(node.value, UnsetType) else node.value)

    def _reader(self, field: str) -> tuple[Callable[[Fields, int], Any], bool]:
        """Return a function that reads a field, and whether its values are typed (text takes the type of the other value)."""
        ext, colon, path = field.partition(":")
        if field == "key":
            return lambda fields, i: fields.keys[i].decode(), False
        if not ext or "/" in ext or (colon and not path):
            raise BadRequest(f"a field must be key, size:EXT, EXT or EXT:path, not {field[:80]!r}")
        if ext == "size" and colon:
            at = _place(self.sized, path.lower())
            return lambda fields, i: size if (size := fields.sizes[at][i]) >= 0 else _MISSING, True
        steps = tuple(path.split(".")) if colon else ()
        at = _place(self.wanted, ext.lower())

        def read(fields: Fields, i: int) -> Any:
            data = fields.values[at][i]
            if data is None:
                return _MISSING
            if not steps:
                return data.decode(errors="replace").strip()
            try:
                return value_at(data, steps)
            except (Absent, ValueError):
                return _MISSING

        return read, bool(steps)


def _place(exts: list[str], ext: str) -> int:
    if ext not in exts:
        exts.append(ext)
    return exts.index(ext)


def _comparison(read: Callable[[Fields, int], Any], typed: bool, op: Op, value: Any) -> Test:
    if op == "exists":
        return lambda fields, i: read(fields, i) is not _MISSING
    if op == "in":
        if not isinstance(value, list):
            raise BadRequest("'in' takes a list")
        each = [_comparison(read, typed, "eq", one) for one in value]
        return lambda fields, i: any(test(fields, i) for test in each)
    if isinstance(value, list):
        raise BadRequest(f"{op} takes one value, not a list")
    if op in ("contains", "starts_with", "ends_with", "matches"):
        return _text_comparison(read, op, value)
    if op not in ("eq", "ne") and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise BadRequest(f"{op} takes a number or a string")
    compare = _COMPARE[op]

    def test(fields: Fields, i: int) -> bool:
        found = read(fields, i)
        if found is _MISSING:
            return False
        if not typed and _kind(value) is float:
            if _NUMBER.fullmatch(found) is None:
                return False
            # Python limits integers to some thousand digits; so many are beyond any value here.
            found = int(found) if len(found) <= _WHOLE_CHARS_MAX and found.strip("+-").isdecimal() else float(found)
        return _kind(found) is _kind(value) and compare(found, value)

    return test


def _text_comparison(read: Callable[[Fields, int], Any], op: str, value: Any) -> Test:
    if not isinstance(value, str):
        raise BadRequest(f"{op} takes a string")
    if op == "matches":
        pattern = Regex(value)
        return lambda fields, i: isinstance(found := read(fields, i), str) and pattern.matches(found)
    if op == "starts_with":
        return lambda fields, i: isinstance(found := read(fields, i), str) and found.startswith(value)
    if op == "ends_with":
        return lambda fields, i: isinstance(found := read(fields, i), str) and found.endswith(value)
    return lambda fields, i: isinstance(found := read(fields, i), str | list) and value in found


def _kind(value: Any) -> Any:
    """The kind of a value, for comparisons: all numbers are of the same kind; true and false are not numbers."""
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
