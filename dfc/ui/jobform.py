"""The form for a job: its fields from the schema of the options, the job from what was entered, and the reverse. No I/O.

What was entered is texts by the names of fields. Those of options begin with `option.`; an empty one is not given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlencode

import msgspec

from dfc.errors import BadRequest, DfcError
from dfc.jobs.options import KNOWN_VALUES
from dfc.jobs.schemas import type_words
from dfc.jobs.spec import InputSpec, JobSpec
from dfc.limits import FORM_BYTES_MAX
from dfc.wire.catalogue import OperationInfo

Kind = Literal["choice", "number", "text", "json"]
PREFIX: Final = "option."
COMMON: Final = ("on_split",)
ALL_SHARDS: Final = "**"
REQUIRED: Final = {
    "bucket": "say which bucket to read",
    "output_bucket": "say which bucket to write",
    "pattern": "say how to name the outputs",
}
_WHOLE: Final = re.compile(r"-?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")
_PATH: Final = re.compile(r"at `\$\.(\w+)(?:\.(\w+))?")
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_QUOTED: Final = re.compile(r"'(\w+)'|\b([a-z]+(?:_[a-z]+)+)\b")
_OF_SPEC: Final = {"label": "label", "input": "shards", "output": "pattern", "overwrite": "overwrite"}
_OF_CODE: Final = {"no_shards": "shards", "bucket_not_found": "bucket", "output_exists": "pattern"}


@dataclass(frozen=True)
class OptionField:
    """The field of an option. `choices`: of a choice; `known`: texts that are proposed, besides which others may be
    entered. `least`, `most` and `step`: of a number, as HTML has them."""

    name: str
    option: str
    kind: Kind
    about: str
    example: str
    default: str
    required: bool
    choices: tuple[str, ...] = ()
    least: str = ""
    most: str = ""
    step: str = ""
    words: str = ""
    known: tuple[str, ...] = ()


def option_fields(options: Mapping[str, Any]) -> list[OptionField]:
    """Make the fields of an operation's options; those that are required come first, those of all operations last."""
    required = options["required"]
    found = [_field(name, schema, name in required) for name, schema in options["properties"].items()]
    return sorted(found, key=lambda field: (not field.required, field.option in COMMON))


def _field(option: str, schema: Mapping[str, Any], required: bool) -> OptionField:
    types = _types(schema)
    kind, more = _kind(types)
    default = schema.get("default")
    return OptionField(
        name=PREFIX + option,
        option=option,
        kind=kind,
        about=schema.get("description", ""),
        example=_text(schema["examples"][0], kind) if schema.get("examples") else "",
        default="" if default is None else _text(default, kind),
        required=required,
        words=type_words(schema),
        known=tuple(schema.get(KNOWN_VALUES, ())),
        **more,
    )


def _types(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]


def _kind(types: Sequence[Mapping[str, Any]]) -> tuple[Kind, dict[str, Any]]:
    """The kind of field for values of one of these types, and what else it needs."""
    names = {each.get("type") for each in types}
    if len(types) == 1:
        (only,) = types
        choices = only.get("enum", ())
        if choices and all(isinstance(each, str) for each in choices):
            return "choice", {"choices": tuple(choices)}
        if names == {"boolean"}:
            return "choice", {"choices": ("true", "false")}
        if names <= {"integer", "number"} and not choices:
            least, most = only.get("minimum", only.get("exclusiveMinimum")), only.get("maximum")
            bounds = {"least": "" if least is None else str(least), "most": "" if most is None else str(most)}
            return "number", {**bounds, "step": "1" if names == {"integer"} else "any"}
    return ("text", {}) if names <= {"string", "integer", "number"} and "string" in names else ("json", {})


def _text(value: Any, kind: Kind) -> str:
    """A value as it is entered into a field of a kind."""
    return value if isinstance(value, str) and kind != "json" else msgspec.json.encode(value).decode()


# --- from the form


@dataclass
class EnteredJob:
    """The job that was entered, as JSON, and what is wrong with it, by field."""

    spec: bytes
    problems: dict[str, str]


def job_entered(info: OperationInfo, values: Mapping[str, str], *, dry_run: bool = False) -> EnteredJob:
    """Make the body of `POST /v1/jobs` from a form. What is wrong with values the server says; here only what it cannot see."""
    problems = {name: text for name, text in REQUIRED.items() if not values.get(name, "").strip()}
    options = dict[str, msgspec.Raw]()
    for field, schema in zip(option_fields(info.options), _schemas(info), strict=True):
        text = values.get(field.name, "")
        if not text.strip():
            if field.required:
                problems[field.name] = "this is needed"
            continue
        try:
            options[field.option] = msgspec.Raw(_encoded(text, field, schema))
        except BadRequest as error:
            problems[field.name] = error.message
    spec: dict[str, Any] = {
        "operation": info.name,
        "input": _inputs(info, values, problems),
        "output": {"bucket": values.get("output_bucket", "").strip(), "pattern": values.get("pattern", "")},
        **({"options": options} if options else {}),
        **({"overwrite": True} if values.get("overwrite") else {}),
        **({"label": values["label"]} if values.get("label") else {}),
        **({"dry_run": True} if dry_run else {}),
    }
    return EnteredJob(msgspec.json.encode(spec), problems)


def _schemas(info: OperationInfo) -> list[Mapping[str, Any]]:
    return [info.options["properties"][field.option] for field in option_fields(info.options)]


def _inputs(info: OperationInfo, values: Mapping[str, str], problems: dict[str, str]) -> Any:
    first = {"bucket": values.get("bucket", "").strip(), "shards": values.get("shards") or ALL_SHARDS}
    lines = [line.strip() for line in values.get("more", "").splitlines() if line.strip()] if info.takes_many else []
    more = []
    for line in lines:
        bucket, slash, shards = line.partition("/")
        if not slash:
            problems["more"] = "write one input a line, as BUCKET/SHARDS"
        more.append({"bucket": bucket, "shards": shards or ALL_SHARDS})
    return [first, *more] if more else first


def _encoded(text: str, field: OptionField, schema: Mapping[str, Any]) -> bytes:
    """The JSON of a value. What is not of the type goes as text, and the server says what it wants instead."""
    types, short = {each.get("type") for each in _types(schema)}, text.strip()
    if "boolean" in types and short in ("true", "false"):
        return short.encode()
    if types & {"integer", "number"} and _WHOLE.fullmatch(short):
        return str(int(short)).encode()
    if "number" in types and _NUMBER.fullmatch(short):
        return short.encode()
    if field.kind != "json":
        return msgspec.json.encode(text if types == {"string"} else short)
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"this is not JSON, such as {field.example}: {error}") from None
    return text.encode()


# --- to the form


def values_of(spec: bytes, info: OperationInfo) -> dict[str, str]:
    """What has to be entered for a job. BadRequest if the form has no fields for it."""
    job = _decoded(spec)
    first, *more = job.inputs or (InputSpec(""),)
    if more and not info.takes_many:
        raise BadRequest(f"{info.name} takes one input")
    values = {
        "bucket": first.bucket,
        "shards": _spec_text(first),
        "more": "\n".join(f"{each.bucket}/{_spec_text(each)}" for each in more),
        "output_bucket": job.output.bucket,
        "pattern": job.output.pattern,
        "overwrite": "on" if job.overwrite else "",
        "label": job.label,
    }
    fields = {field.option: field for field in option_fields(info.options)}
    try:
        options = msgspec.json.decode(bytes(job.options), type=dict[str, Any])
        for name, value in options.items():
            if value is not None:
                values[fields[name].name] = _text(value, fields[name].kind)
    except KeyError as error:
        raise BadRequest(f"{info.name} has no option {error} any more") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"its options do not go into a form: {error}") from None
    if len(urlencode(values)) > FORM_BYTES_MAX:
        raise BadRequest("its spec is too long for a form: GET /v1/jobs/ID/spec has it")
    return values


def operation_of(spec: bytes) -> str:
    """The operation of a job. BadRequest."""
    return _decoded(spec).operation


def _decoded(spec: bytes) -> JobSpec:
    try:
        return msgspec.json.decode(spec, type=JobSpec)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the spec of this job does not go into a form: {error}") from None


def _spec_text(source: InputSpec) -> str:
    """Shards as text: a list is written as JSON, which shard specs know."""
    return source.shards if isinstance(source.shards, str) else msgspec.json.encode(source.shards).decode()


def field_of(error: DfcError, info: OperationInfo) -> str:
    """The field that an error of the server is about; empty if it does not say."""
    options, message = info.options["properties"], error.message
    found = _PATH.search(message)
    if found is not None and message.startswith("invalid job"):
        deep = {("input", "bucket"): "bucket", ("output", "bucket"): "output_bucket"}
        return deep.get((found[1], found[2]), _OF_SPEC.get(found[1], ""))
    names = [] if found is None else [found[1]]
    if not names:
        names = _MISSING.findall(message) or ["".join(pair) for pair in _QUOTED.findall(message)]
    for name in names:
        if name in options:
            return PREFIX + name
    if "output pattern" in message:
        return "pattern"
    return _OF_CODE.get(error.code, "shards" if error.code == "bad_shard_spec" and not info.options["required"] else "")
