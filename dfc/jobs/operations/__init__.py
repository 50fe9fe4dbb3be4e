"""The operations that a job can do, one module each, loaded when first asked for.

A module has `Options` (a frozen msgspec struct that forbids unknown fields), `check(options, pattern)`, which raises BadRequest
for what the types cannot say, `plan(job: JobInput) -> list[Stage]`, pure, and `FUNCTIONS`, a mapping from stage names to what
runs on a worker. One that takes a list of inputs has `TAKES_MANY = True`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol, cast

from dfc.errors import BadRequest
from dfc.jobs.pattern import OutputPattern
from dfc.jobs.tasks import Function, JobInput, Stage

OPERATIONS: Final[tuple[str, ...]] = ()


class Operation(Protocol):
    """What a module of this package looks like from outside."""

    Options: type[Any]
    check: Callable[[Any, OutputPattern], None]
    plan: Callable[[JobInput], Sequence[Stage]]
    FUNCTIONS: Mapping[str, Function]


def operation(name: str) -> Operation:
    """The module; BadRequest for a name that is none."""
    if name not in OPERATIONS:
        raise BadRequest(f"unknown operation {name[:80]!r}; there are {', '.join(OPERATIONS)}")
    return cast(Operation, import_module(f"dfc.jobs.operations.{name}"))


def find_function(name: str) -> Function:
    """What runs a task whose `function` is `OPERATION.STAGE`."""
    of, _, stage = name.partition(".")
    return operation(of).FUNCTIONS[stage]
