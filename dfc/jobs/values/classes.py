"""The class of a sample, as text: the content of a field, or the value at a path in its JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from dfc.errors import BadRequest, Conflict
from dfc.limits import JOB_CLASS_CHARS_MAX


class NotAClass(Conflict):
    """The field that holds the class is not a short text or number."""

    code = "not_a_class"


class ClassField(NamedTuple):
    """A field such as `cls` or `json:label.name`: an extension, and a path of keys (or list indexes) in its JSON."""

    ext: str
    path: tuple[str, ...]


def parse_class_field(text: str) -> ClassField:
    """Parse the name of a field. BadRequest if it is invalid."""
    ext, colon, path = text.partition(":")
    steps = tuple(path.split(".")) if colon else ()
    if not ext or "/" in ext or "" in steps:
        raise BadRequest(f"a field must be an extension, or extension:json.path, not {text[:80]!r}")
    return ClassField(ext.lower(), steps)


def class_of(field: ClassField, data: bytes | None) -> str | None:
    """Return the class; None if field or path are absent (or JSON null). NotAClass for values that cannot be one."""
    if data is None:
        return None
    if not field.path:
        return _checked(data[: 4 * JOB_CLASS_CHARS_MAX + 1].decode(errors="backslashreplace").strip())
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAClass(f"its field {field.ext!r} is not JSON ({str(error)[:100]})") from None
    for step in field.path:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and len(step) < 10 and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    if value is None:
        return None
    return _checked(value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode())


def _checked(text: str) -> str:
    if len(text) > JOB_CLASS_CHARS_MAX:
        raise NotAClass(f"a class can have at most {JOB_CLASS_CHARS_MAX} characters; this one begins with {text[:40]!r}")
    return text
