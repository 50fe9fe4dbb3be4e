"""The body of `POST /v1/jobs`, decoded and checked; and the operations that it can ask for, described.

It is checked as far as possible without looking up any object. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from dfc.errors import BadRequest
from dfc.jobs.operations import OPERATIONS, operation, other_outputs, takes_any_object, takes_many
from dfc.jobs.spec import CheckedSpec, JobSpec
from dfc.limits import JOB_MERGE_SOURCES_MAX
from dfc.listing.specs import OutputPattern, check
from dfc.names import check_bucket_name
from dfc.wire.objects import OperationInfo, SettingNeed


def parse_spec(body: bytes) -> CheckedSpec:
    """Decode and check a spec. BadRequest, BadName or BadShardSpec say which field is wrong and what is allowed."""
    try:
        spec = msgspec.json.decode(body, type=JobSpec)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"invalid job: {error}") from None
    return check_spec(spec)


def check_spec(spec: JobSpec) -> CheckedSpec:
    """Check a decoded spec, with the same errors."""
    found = operation(spec.operation)
    if not spec.inputs or (isinstance(spec.input, list) and not takes_many(spec.operation)):
        raise BadRequest(f"{spec.operation} takes one input, not a list")
    if len(spec.inputs) > JOB_MERGE_SOURCES_MAX:  # before any of them is looked for
        raise BadRequest(f"{spec.operation} takes at most {JOB_MERGE_SOURCES_MAX} inputs, not {len(spec.inputs)}")
    for source in spec.inputs:
        check_bucket_name(source.bucket)
        check(source.shards)
    check_bucket_name(spec.output.bucket)
    pattern = OutputPattern(spec.output.pattern)
    try:
        options = msgspec.json.decode(bytes(spec.options) or b"{}", type=found.Options)
        msgspec.msgpack.encode(options)  # as tasks carry them
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"invalid options for {spec.operation}: {error}") from None
    except OverflowError:
        raise BadRequest(f"invalid options for {spec.operation}: a whole number has more than 64 bits") from None
    checked = CheckedSpec(spec, options, pattern)
    found.check(options, pattern)
    others = other_outputs(spec.operation, options, pattern)
    return msgspec.structs.replace(checked, pattern=replace(pattern, others=others)) if others else checked


# --- What operations there are, for people and programs: what each does, its options as JSON Schema, the settings it may need.

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
