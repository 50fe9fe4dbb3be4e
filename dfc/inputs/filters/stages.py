"""Make and compose filters: a filter is called with a source and returns an iterable of what passes through it.

The result can be iterated as often as its source: over a list or a dataset each `for` is a new pass; over an iterator there is
one pass, and the result is itself an iterator, for `next`. A filter can be pickled if its arguments can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec

from dfc.inputs.base import Counts, Handler, SampleBroken, resolve_handler
from dfc.inputs.decoding import broken

P = ParamSpec("P")
# A filter, or anything that can be used as one.
Step = Callable[[Any], Any]


class Filter:
    """`function(source, *arguments, **options)` without its source. `counts` tells what it dropped, if the function counts."""

    def __init__(self, function: Callable[..., Iterator[Any]], *arguments: Any, numbered: bool = False, **options: Any) -> None:
        self.function = function
        self.arguments = arguments
        self.options = options
        self.numbered = numbered  # whether the function takes `number=`, the number of the pass over the source, from 0
        self.counts: Counts = options.get("counts") or Counts()

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        return through(source, self._run, numbered=True)

    def _run(self, source: Iterable[Any], number: int) -> Iterator[Any]:
        numbered = {"number": number} if self.numbered else {}
        return self.function(source, *self.arguments, **self.options, **numbered)

    def __repr__(self) -> str:
        return f"<filter {self.function.__name__.strip('_')}>"


class Stage:
    """A source and a function applied to it, which can be iterated repeatedly."""

    def __init__(self, source: Any, function: Callable[[Any, int], Iterator[Any]]) -> None:
        self.source = source
        self._function = function
        self._number = 0

    def __iter__(self) -> Iterator[Any]:
        number = self._number
        self._number += 1
        return self._function(self.source, number)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass (from 0), on which random orders depend; also for the source, if it has epochs."""
        self._number = epoch
        for source in self.source if isinstance(self.source, list | tuple) else (self.source,):
            if hasattr(source, "set_epoch"):
                source.set_epoch(epoch)


def through(source: Any, function: Callable[..., Iterator[Any]], *, numbered: bool = False) -> Iterable[Any]:
    """Apply a function to a source: iterable once if that is an iterator, else repeatedly. A tuple is several sources."""
    run = function if numbered else _Unnumbered(function)
    sources = source if isinstance(source, tuple) else (source,)
    if any(isinstance(entry, Iterator) for entry in sources):
        return run(source, 0)
    return Stage(source, run)


class _Unnumbered:
    def __init__(self, function: Callable[..., Iterator[Any]]) -> None:
        self.function = function

    def __call__(self, source: Any, number: int) -> Iterator[Any]:
        return self.function(source)


def curried(function: Callable[Concatenate[Any, P], Iterator[Any]]) -> Callable[P, Filter]:
    """Decorator for your own filters: use a generator `f(source, a, b)` as `f(a, b)(source)`."""

    @wraps(function)
    def maker(*arguments: P.args, **options: P.kwargs) -> Filter:
        return _Curried(maker, function, arguments, options)

    return maker


class _Curried(Filter):
    """Pickled as the call that made it, since the name of the function now refers to the maker."""

    def __init__(self, maker: Callable[..., Filter], function: Callable[..., Any], arguments: Any, options: Any) -> None:
        self._made_by = (maker, arguments, options)
        super().__init__(function)
        self.arguments, self.options = arguments, options

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, self._made_by


def _make(maker: Callable[..., Filter], arguments: tuple[Any, ...], options: dict[str, Any]) -> Filter:
    return maker(*arguments, **options)


class Composed:
    """Filters applied one after the other."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps

    def __call__(self, source: Any) -> Any:
        for step in self.steps:
            source = step(source)
        return source

    def __repr__(self) -> str:
        return f"compose{self.steps!r}"


def compose(*steps: Step) -> Step:
    """Compose filters, applied from left to right. Without filters, the result is the source itself."""
    return Composed(steps)


def compose2(first: Step, second: Step) -> Step:
    """`second(first(source))`."""
    return Composed((first, second))


def pipeline(source: Any, *steps: Step) -> Any:
    """Apply filters to a source from left to right."""
    return Composed(steps)(source)


def identity() -> Filter:
    """Pass all samples unchanged."""
    return Filter(_identity)


def _identity(source: Iterable[Any]) -> Iterator[Any]:
    yield from source


class FieldMissing(SampleBroken):
    """A sample lacks a field that a filter uses."""

    code = "field_missing"


SKIP: Final = object()  # returned by a function in `each` to drop a sample


def each(source: Iterable[Any], function: Callable[[Any], Any], handler: Handler, *, counts: Counts) -> Iterator[Any]:
    """Map `function` over samples, dropping SKIP. If it raises, the handler decides, and the loss is counted."""
    decide = resolve_handler(handler)
    for sample in source:
        try:
            result = function(sample)
        except ImportError:
            raise  # a library is missing; the sample is fine
        except Exception as problem:
            error = problem
            if not isinstance(problem, SampleBroken):
                error = broken(sample, "a filter failed", problem)
                error.__cause__ = problem
            counts.note(error)
            counts.add(samples_skipped=1)
            if not decide(error):
                return
            continue
        if result is not SKIP:
            yield result


def alternatives(names: str) -> tuple[str, ...]:
    """The names in `"jpg;png"` or `"jpg png"`, of which the first that a sample has is used. ValueError for no name."""
    found = tuple(names.replace(";", " ").split())
    if not found:
        raise ValueError(f"no field name in {names!r}")
    return found


def pick(sample: Any, names: tuple[str, ...]) -> Any:
    """The value of the first of these fields that the sample has. FieldMissing if it has none."""
    for name in names:
        if name in sample:
            return sample[name]
    raise missing(sample, names)


def missing(sample: Any, names: tuple[str, ...]) -> FieldMissing:
    wanted, there = " or ".join(repr(name) for name in names), ", ".join(repr(name) for name in sample)
    error = broken(sample, f"has no field {wanted}, only {there}"[:500])
    return FieldMissing(str(error), url=error.url, key=error.key)
