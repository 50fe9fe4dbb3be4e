"""The operations of jobs: each module of this package is one, imported on first use.

A module has `Options` (a frozen msgspec struct that forbids unknown fields), `check(options, pattern)`, which raises BadRequest
for what the types cannot express, a pure `plan(job: JobInput) -> list[Stage]`, and `FUNCTIONS`, which maps names of stages to
functions that run on workers. It can also have:

| name | meaning |
| --- | --- |
| `TAKES_MANY = True` | its input can be a list of inputs |
| `TAKES_ANY_OBJECT = True` | its inputs can be objects without an index, which are passed as `InputShard.unread` |
| `other_inputs(options) -> tuple[InputSpec, ...]` | objects of any kind that options name, added to `JobInput.inputs` |
| `other_outputs(options, pattern) -> tuple[str, ...]` | names of outputs that the pattern does not match, or patterns of them |
| `reads_only(options) -> bool` | whether its output is about samples and contains none, so that it leaves none out |
| `needs(options) -> tuple[str, ...]` | settings, off by default, that the operator must turn on, or the job is refused (403) |
| `MAY_NEED: Mapping[str, str]` | all settings that `needs` may return, each with what of an operation wants it |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, Protocol, cast

from dfc.errors import BadRequest, Forbidden
from dfc.jobs.spec import InputSpec
from dfc.jobs.store import Function
from dfc.jobs.tasks import JobInput, Stage
from dfc.listing.specs import OutputPattern
from dfc.wire import prepare_structs

OPERATIONS: Final = tuple(sorted(module.name for module in iter_modules(__path__)))


class Operation(Protocol):
    """The interface of a module of this package."""

    Options: type[Any]
    check: Callable[[Any, OutputPattern], None]
    plan: Callable[[JobInput], Sequence[Stage]]
    FUNCTIONS: Mapping[str, Function]


def operation(name: str) -> Operation:
    """Return the module of an operation. BadRequest for an unknown name."""
    if name not in OPERATIONS:
        raise BadRequest(f"unknown operation {name[:80]!r}; choose from {', '.join(OPERATIONS)}")
    module = import_module(f"dfc.jobs.operations.{name}")
    prepare_structs()
    return cast(Operation, module)


def takes_many(name: str) -> bool:
    """Whether the input of this operation can be a list of inputs."""
    return bool(getattr(operation(name), "TAKES_MANY", False))


def takes_any_object(name: str) -> bool:
    """Whether the inputs of this operation can be objects without an index."""
    return bool(getattr(operation(name), "TAKES_ANY_OBJECT", False))


def other_inputs(name: str, options: Any) -> tuple[InputSpec, ...]:
    """Return further inputs that the (checked) options name; they can always be objects without an index."""
    found: Callable[[Any], tuple[InputSpec, ...]] | None = getattr(operation(name), "other_inputs", None)
    return () if found is None else found(options)


def other_outputs(name: str, options: Any, pattern: OutputPattern) -> tuple[str, ...]:
    """Return the names of outputs that the pattern does not match."""
    found: Callable[[Any, OutputPattern], tuple[str, ...]] | None = getattr(operation(name), "other_outputs", None)
    return () if found is None else found(options, pattern)


def reads_only(name: str, options: Any) -> bool:
    """Whether the outputs contain no samples: they are about those that are read."""
    found: Callable[[Any], bool] | None = getattr(operation(name), "reads_only", None)
    return found is not None and found(options)


def check_enabled(name: str, options: Any, settings: object) -> None:
    """Raise Forbidden if the operation needs a setting that is off; `settings` has the settings as attributes."""
    for setting in getattr(operation(name), "needs", lambda _: ())(options):
        if not getattr(settings, setting, False):
            raise Forbidden(f"this job runs user code, which the operator has not allowed (setting {setting!r})")


def find_function(name: str) -> Function:
    """Return the function for a task whose `function` is `OPERATION.STAGE`."""
    of, _, stage = name.partition(".")
    return operation(of).FUNCTIONS[stage]
