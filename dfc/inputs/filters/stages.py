"""How filters are made and put together: a filter is called with a source and gives what passes through it.

What a filter gives can be iterated as often as its source: over a list or a dataset each `for` is a new pass; over an iterator
there is one pass, and it is an iterator itself, for `next`. Filters travel between processes when their arguments do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec

from dfc.inputs.base import Counts, Handler, SampleBroken, resolve_handler
from dfc.inputs.decoding import broken

P = ParamSpec("P")
# A filter, or anything that is used as one.
Step = Callable[[Any], Any]


class Filter:
    """`function(source, *arguments, **options)` that waits for its source. `counts` says what it left out, where it can."""

    def __init__(self, function: Callable[..., Iterator[Any]], *arguments: Any, numbered: bool = False, **options: Any) -> None:
        self.function = function
        self.arguments = arguments
        self.options = options
        self.numbered = numbered  # the function takes `number=`: which pass over the source this is, from 0 on
        self.counts: Counts = options.get("counts") or Counts()

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        return through(source, self._run, numbered=True)

    def _run(self, source: Iterable[Any], number: int) -> Iterator[Any]:
        numbered = {"number": number} if self.numbered else {}
        return self.function(source, *self.arguments, **self.options, **numbered)

    def __repr__(self) -> str:
        return f"<filter {self.function.__name__.strip('_')}>"


class Stage:
    """A source and what is done to it, to be iterated again and again."""

    def __init__(self, source: Any, function: Callable[[Any, int], Iterator[Any]]) -> None:
        self.source = source
        self._function = function
        self._number = 0

    def __iter__(self) -> Iterator[Any]:
        number = self._number
        self._number += 1
        return self._function(self.source, number)

    def set_epoch(self, epoch: int) -> None:
        """The next pass is number `epoch` (from 0 on), which seeds count by; also for the source if it knows epochs."""
        self._number = epoch
        for source in self.source if isinstance(self.source, list | tuple) else (self.source,):
            if hasattr(source, "set_epoch"):
                source.set_epoch(epoch)


def through(source: Any, function: Callable[..., Iterator[Any]], *, numbered: bool = False) -> Iterable[Any]:
    """What `function(source)` iterates: once over an iterator, again and again over all else. A tuple is several sources."""
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
    """A decorator for filters of your own: a generator `f(source, a, b)` is then used as `f(a, b)(source)`."""

    @wraps(function)
    def maker(*arguments: P.args, **options: P.kwargs) -> Filter:
        return _Curried(maker, function, arguments, options)

    return maker


class _Curried(Filter):
    """Travels as the call that made it, since the name of its function now stands for the maker."""

    def __init__(self, maker: Callable[..., Filter], function: Callable[..., Any], arguments: Any, options: Any) -> None:
        self._made_by = (maker, arguments, options)
        super().__init__(function)
        self.arguments, self.options = arguments, options

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, self._made_by


def _make(maker: Callable[..., Filter], arguments: tuple[Any, ...], options: dict[str, Any]) -> Filter:
    return maker(*arguments, **options)


class Composed:
    """Filters one after the other."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps

    def __call__(self, source: Any) -> Any:
        for step in self.steps:
            source = step(source)
        return source

    def __repr__(self) -> str:
        return f"compose{self.steps!r}"


def compose(*steps: Step) -> Step:
    """One filter of several, which are applied from left to right. Without any it gives the source itself."""
    return Composed(steps)


def compose2(first: Step, second: Step) -> Step:
    """`second(first(source))`."""
    return Composed((first, second))


def pipeline(source: Any, *steps: Step) -> Any:
    """The source with filters applied to it from left to right."""
    return Composed(steps)(source)


def identity() -> Filter:
    """All samples as they are."""
    return Filter(_identity)


def _identity(source: Iterable[Any]) -> Iterator[Any]:
    yield from source


class FieldMissing(SampleBroken):
    """A sample lacks a field that a filter was told to use."""

    code = "field_missing"


SKIP: Final = object()  # given by a function in `each` for a sample that is not wanted


def each(source: Iterable[Any], function: Callable[[Any], Any], handler: Handler, *, counts: Counts) -> Iterator[Any]:
    """What `function` makes of each sample, SKIP left out. Where it raises, the handler decides; what is lost is counted."""
    decide = resolve_handler(handler)
    for sample in source:
        try:
            result = function(sample)
        except ImportError:
            raise  # something is missing here, not in the sample
        except Exception as problem:
            error = problem
            if not isinstance(problem, SampleBroken):
                error = broken(sample, "a filter fails", problem)
                error.__cause__ = problem
            counts.note(error)
            counts.add(samples_skipped=1)
            if not decide(error):
                return
            continue
        if result is not SKIP:
            yield result


def alternatives(names: str) -> tuple[str, ...]:
    """`"jpg;png"` or `"jpg png"`: the first of them that a sample has. ValueError for no name."""
    found = tuple(names.replace(";", " ").split())
    if not found:
        raise ValueError("no field is named")
    return found


def pick(sample: Any, names: tuple[str, ...]) -> Any:
    """The value of the first of the fields that is there. FieldMissing if there is none."""
    for name in names:
        if name in sample:
            return sample[name]
    raise missing(sample, names)


def missing(sample: Any, names: tuple[str, ...]) -> FieldMissing:
    error = broken(sample, f"has no field {' or '.join(map(repr, names))}, only {', '.join(map(repr, sample))}"[:500])
    return FieldMissing(str(error), url=error.url, key=error.key)
