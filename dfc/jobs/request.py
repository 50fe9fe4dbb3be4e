"""Decodes and checks the body of `POST /v1/jobs`, as far as possible without looking up any object. Pure."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from dfc.errors import BadRequest
from dfc.jobs.operations import operation, other_outputs, takes_many
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.spec import CheckedSpec, JobSpec
from dfc.limits import JOB_MERGE_SOURCES_MAX
from dfc.names import check_bucket_name
from dfc.shards import check


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
