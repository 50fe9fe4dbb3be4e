"""Listings as faces ask for them, within their budget."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dfc.api.shared import ROWS_AT_ONCE, as_json, datasets_of, listing_query, page_answer
from dfc.errors import BadRequest
from dfc.http.answers import Answer
from dfc.http.budget import LISTINGS, Budget, Kind
from dfc.limits import DATASETS_BYTES, LISTING_ROW_BYTES
from dfc.listing.pages import ListingQuery, Page

QUERY = ListingQuery("id")


def test_the_query_of_a_listing():
    assert listing_query("id", {}) == ListingQuery("id")
    assert listing_query("id", {"prefix": "p", "delimiter": "/", "start_after": "a", "token": "b"}) == ListingQuery(
        "id", "p", "b", "/"
    )
    assert listing_query("id", {"start_after": "c", "token": "b"}).start_after == "c"
    with pytest.raises(BadRequest):
        listing_query("id", {"delimiter": "//"})


class Asked(SimpleNamespace):
    """A request, and the listings that it asks; both note what the other has done by then."""

    def __init__(self, rows: int) -> None:
        super().__init__(place=None, held=[])
        self.rows = rows
        self.budget = Budget(LISTINGS)

    async def enter(self, kind: Kind, size: int = 0) -> None:
        assert kind is LISTINGS
        self.place = await self.budget.enter(size)

    def rows_held(self, query: ListingQuery, limit: int) -> int:
        return limit + 64

    async def page(self, query: ListingQuery, limit: int) -> Page:
        self.held.append(self.budget.bytes)
        return Page([(f"{number:06d}", 1, "", 0, None, None) for number in range(self.rows)], [], False)

    async def datasets(self, query: ListingQuery) -> list[Any]:
        self.held.append(self.budget.bytes)
        return []


async def test_a_page_takes_room_for_its_rows() -> None:
    for rows in (3, ROWS_AT_ONCE + 1):
        asked: Any = Asked(rows)
        answer = await page_answer(asked, asked, QUERY, 5000, as_json)
        assert asked.held == [5064 * LISTING_ROW_BYTES]
        assert answer.body.count(b'"name"') == rows


async def test_a_long_page_is_rendered_in_a_thread() -> None:
    threads = list[int]()

    def render(page: Page) -> Answer:
        threads.append(threading.get_ident())
        return as_json(page)

    for rows in (3, 4):
        asked: Any = Asked(rows)
        await page_answer(asked, asked, QUERY, 5000, render, 3)
    assert [each == threading.get_ident() for each in threads] == [True, False]


async def test_grouping_takes_room() -> None:
    asked: Any = Asked(0)
    assert await datasets_of(asked, asked, QUERY) == []
    assert asked.held == [DATASETS_BYTES]
