"""A job on its pages: the form for it, what it was asked to do, and what it has found. No I/O.

The fields of the form come from the schema of the options. What was entered is texts by the names of fields. Those of options
begin with `option.`; an empty one is not given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlencode

import msgspec

from dfc.errors import BadRequest, DfcError
from dfc.jobs.records import (
    ReportedProblem,
    StatsReport,
    ValidateReport,
    checked_words,
    counted_words,
    report_name,
    report_of,
    validation_of,
)
from dfc.jobs.request import parse_spec, type_words
from dfc.jobs.spec import KNOWN_VALUES, InputSpec, JobSpec
from dfc.limits import FORM_BYTES_MAX, format_size
from dfc.listing.datasets import NumberedNames
from dfc.listing.specs import OutputPattern, is_plain
from dfc.names import object_path
from dfc.tar.index.format import index_kind
from dfc.ui import words
from dfc.ui.traces import Linked
from dfc.ui.words import dataset_url, datasets_url, page_of, text_or_json
from dfc.wire.jobs import Job
from dfc.wire.objects import OperationInfo

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
    return msgspec.json.encode(value).decode() if kind == "json" else text_or_json(value)


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
    for field in option_fields(info.options):
        text, schema = values.get(field.name, ""), info.options["properties"][field.option]
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
        "shards": text_or_json(first.shards),
        "more": "\n".join(f"{each.bucket}/{text_or_json(each.shards)}" for each in more),
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


def field_of(error: DfcError, info: OperationInfo) -> str:
    """The field that an error of the server is about; empty if it does not say."""
    options, message = info.options["properties"], error.message
    found = _PATH.search(message)
    if found is not None and message.startswith("invalid job"):
        deep = {("input", "bucket"): "bucket", ("output", "bucket"): "output_bucket"}
        return deep.get((found[1], found[2]), _OF_SPEC.get(found[1], ""))
    names = _MISSING.findall(message) if found is None else [found[1]]
    for name in names or ["".join(pair) for pair in _QUOTED.findall(message)]:
        if name in options:
            return PREFIX + name
    if "output pattern" in message:
        return "pattern"
    return _OF_CODE.get(error.code, "shards" if error.code == "bad_shard_spec" and not info.options["required"] else "")


# --- What a job was asked to do, by its spec: what it reads, what it writes, its options. No I/O.

SHOWN_MAX: Final = 8  # inputs of a job
TEXT_CHARS_MAX: Final = 200


class JobDescription(NamedTuple):
    """What a job reads, with pages of it, and `more_inputs` that are not shown; what it writes, as text; its options as names
    and values; the name of its report, if it writes one."""

    inputs: list[Linked]
    more_inputs: int
    output: str
    options: list[tuple[str, str]]
    report: str

    @property
    def reads(self) -> str:
        """What it reads, in a line."""
        return ", ".join(each.text for each in self.inputs) + (" …" if self.more_inputs else "")


def described(spec: bytes) -> JobDescription | None:
    """Read a spec. None if it is of another version."""
    try:
        job = msgspec.json.decode(spec, type=JobSpec)
        options = msgspec.json.decode(bytes(job.options) or b"{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    shown = [(name, _short(text_or_json(value))) for name, value in options.items() if value is not None]
    return JobDescription(
        [_input(each) for each in job.inputs[:SHOWN_MAX]],
        max(0, len(job.inputs) - SHOWN_MAX),
        _short(f"{job.output.bucket}/{job.output.pattern}"),
        shown + ([("overwrite", "true")] if job.overwrite else []),
        report_name(job.operation, job.output.pattern, options),
    )


def made_by(spec: bytes, job: Job) -> Linked | None:
    """The page of what a job has made: of its shards if they are one sequence, of an object if it is one, else of all datasets
    where they are. None if it has made nothing yet. BadRequest if its spec is of another version."""
    if job.output is None:
        return None
    checked = parse_spec(spec)
    bucket, pattern = checked.spec.output.bucket, checked.pattern
    folder = pattern.literal[: pattern.literal.rfind("/") + 1]
    shards = shards_of(pattern, job.output.shards)
    if shards:
        return Linked(shards, dataset_url(bucket, shards))
    if job.output.shards == 1 and not (pattern.is_numbered or pattern.has_part or pattern.is_prefix or pattern.others):
        return _object(bucket, pattern.text)
    return Linked(f"{bucket}/{folder}", datasets_url(bucket, folder))


def shards_of(pattern: OutputPattern, shards: int) -> str:
    """The pattern of so many shards, numbered from 0 on. Empty if they are not one sequence, or a pattern could mean others."""
    plain = pattern.is_numbered and is_plain(pattern.text)
    plain = plain and index_kind(pattern.name(0)) is not None  # the page of a dataset is about shards alone
    if not plain or pattern.has_part or pattern.is_prefix or pattern.others or not shards:
        return ""
    head, tail = pattern.text[: pattern.text.index("%")], pattern.text[pattern.text.index("d", pattern.text.index("%")) + 1 :]
    first, last = (pattern.name(number)[len(head) :].removesuffix(tail) for number in (0, shards - 1))
    if 1 < len(first) < len(last):  # a pattern has one width
        return ""
    return f"{head}{{{first}..{last}}}{tail}"


def _input(source: InputSpec) -> Linked:
    """What a job reads, with the page that shows it."""
    bucket, shards = source.bucket, source.shards
    if not isinstance(shards, str):
        if len(shards) == 1:
            return _object(bucket, shards[0])
        return Linked(_short(f"{bucket}: {len(shards)} shards, such as {shards[0] if shards else ''}"), page_of(bucket))
    if shards == ALL_SHARDS:
        return Linked(f"{bucket} (all shards)", page_of(bucket))
    if is_plain(shards):
        return _object(bucket, shards)
    text, names = _short(f"{bucket}/{shards}"), NumberedNames.of(shards)
    if names is not None and is_plain(names.before + names.after):
        return Linked(text, dataset_url(bucket, shards))
    literal = shards[: min((at for at in map(shards.find, "{*?[@") if at >= 0), default=len(shards))]
    return Linked(text, datasets_url(bucket, literal[: literal.rfind("/") + 1]))


def _object(bucket: str, name: str) -> Linked:
    is_shard = index_kind(name) is not None
    return Linked(_short(f"{bucket}/{name}"), dataset_url(bucket, name) if is_shard else object_path(bucket, name))


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + " …"


# --- What a job has found that writes a report: its counts, and the first problems. No I/O.

PROBLEMS_SHOWN_MAX: Final = 5  # of each kind
KINDS_SHOWN_MAX: Final = 20
MEANINGS: Final = {
    "truncated": "the archive ends early",
    "broken": "the archive cannot be read to its end",
    "split": "a key comes again later in its shard, with other fields",
    "duplicate": "a key that an earlier sample has",
    "missing": "a required field is not there",
    "undecodable": "a picture or JSON that cannot be decoded",
}


class ProblemKind(NamedTuple):
    """Problems of a kind: how many there are in all, what that means, and the first of them."""

    name: str
    total: str
    meaning: str
    first: list[str]


class ReportView(NamedTuple):
    """A report in a line, as figures with names, and as problems. `is_bad`: there are problems."""

    said: str
    figures: list[tuple[str, str]]
    problems: list[ProblemKind]
    is_bad: bool


def view_of(operation: str, content: bytes) -> ReportView | None:
    """Read a report, or its beginning. None if it cannot be read."""
    if operation == "stats":
        counted = report_of(content)
        return None if counted is None else _counted(counted)
    checked = validation_of(content)
    return None if checked is None else _checked(checked)


def _counted(report: StatsReport) -> ReportView:
    fields = [
        (f"field {ext}"[:TEXT_CHARS_MAX], f"{words.count(totals.members)}, {format_size(totals.bytes)}")
        for ext, totals in sorted(report.extensions.items(), key=lambda pair: -pair[1].bytes)[:KINDS_SHOWN_MAX]
    ]
    figures = [
        ("shards", words.count(report.shards)),
        ("samples", words.count(report.samples)),
        ("size", format_size(report.stored_bytes)),
    ]
    if report.by is not None and report.classes is not None:
        figures.append((f"classes by {report.by}"[:TEXT_CHARS_MAX], words.count(len(report.classes))))
    return ReportView(counted_words(report)[:TEXT_CHARS_MAX], figures + fields, [], is_bad=False)


def _checked(report: ValidateReport) -> ReportView:
    kinds = [
        ProblemKind(
            kind[:TEXT_CHARS_MAX],
            words.count(count),
            MEANINGS.get(kind, ""),
            [_problem(each) for each in report.problems.get(kind, [])[:PROBLEMS_SHOWN_MAX]],
        )
        for kind, count in list(report.counts.items())[:KINDS_SHOWN_MAX]
        if count
    ]
    figures = [("shards", words.count(report.shards)), ("samples", words.count(report.samples))]
    return ReportView(checked_words(report)[:TEXT_CHARS_MAX], figures, kinds, is_bad=bool(kinds))


def _problem(problem: ReportedProblem) -> str:
    said = problem.shard[:TEXT_CHARS_MAX]
    if problem.key is not None:
        said += f", sample {problem.key[:TEXT_CHARS_MAX]!r}"
    if problem.fields:
        said += f", {', '.join(problem.fields)[:TEXT_CHARS_MAX]}"
    if problem.message:
        said += f": {problem.message[:TEXT_CHARS_MAX]}"
    return said + (f"; first in {problem.first[:TEXT_CHARS_MAX]}" if problem.first else "")
