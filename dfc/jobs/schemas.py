"""What operations there are, for people and programs: what each does, its options as JSON Schema, the settings it may need."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dfc.jobs.operations import OPERATIONS, operation, takes_any_object, takes_many
from dfc.wire.catalogue import OperationInfo, SettingNeed

_WORDS: Final = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_SENTENCE: Final = re.compile(r".+?\.(?=\s|$)", re.DOTALL)


def all_operations(settings: object) -> list[OperationInfo]:
    """Describe all operations. It imports them, which takes a second. `settings` has those of this node as attributes."""
    return [_described(name, settings) for name in OPERATIONS]


def _described(name: str, settings: object) -> OperationInfo:
    module = operation(name)
    about = " ".join((module.__doc__ or "").split())
    sentence = _SENTENCE.match(about)
    needed = getattr(module, "MAY_NEED", {})
    return OperationInfo(
        name=name,
        summary=about if sentence is None else sentence[0],
        description=about,
        takes_many=takes_many(name),
        takes_any_object=takes_any_object(name),
        settings=tuple(SettingNeed(name=each, when=when, on=bool(getattr(settings, each))) for each, when in needed.items()),
        options=options_schema(module.Options),
    )


def options_schema(options: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a struct of options: an object itself; `$defs` has only what its properties refer to."""
    schema = msgspec.json.schema(options)
    others = schema.pop("$defs")
    whole: dict[str, Any] = others.pop(schema["$ref"].rpartition("/")[2])
    del whole["title"]  # the name of a class
    return {**whole, "$defs": others} if others else whole


def type_words(schema: Mapping[str, Any]) -> str:
    """Say in words which values a schema takes: `whole number or text`. Null, which stands for "not given", is left out."""
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(type_words(each) for each in schema["anyOf"] if each.get("type") != "null")
    kind = schema.get("type")
    if kind == "array":
        return "list"
    return _WORDS.get(kind, "object") if isinstance(kind, str) else "object"
