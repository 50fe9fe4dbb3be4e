"""Long sequences stored in a database, fetched a page at a time, so that a job of a million tasks takes little memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar, overload

T = TypeVar("T")
PAGE: Final = 1024
PAGES_KEPT: Final = 8


class Stored(Sequence[T]):
    """A sequence of `count` items; `fetch(start, stop)` returns a range of them. Not thread-safe."""

    def __init__(self, count: int, fetch: Callable[[int, int], list[T]]) -> None:
        self._count = count
        self._fetch = fetch
        self._pages: OrderedDict[int, list[T]] = OrderedDict()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step == 1:
                return self._fetch(start, stop) if start < stop else []
            return [self[at] for at in range(start, stop, step)]
        at = index + self._count if index < 0 else index
        if not 0 <= at < self._count:
            raise IndexError(index)
        return self._page(at // PAGE)[at % PAGE]

    def __iter__(self) -> Iterator[T]:
        for start in range(0, self._count, PAGE):
            yield from self._fetch(start, min(start + PAGE, self._count))

    def _page(self, number: int) -> list[T]:
        page = self._pages.get(number)
        if page is None:
            page = self._fetch(number * PAGE, min((number + 1) * PAGE, self._count))
            self._pages[number] = page
            if len(self._pages) > PAGES_KEPT:
                self._pages.popitem(last=False)
        else:
            self._pages.move_to_end(number)
        return page
