"""Listings as faces ask for them."""

from __future__ import annotations

import pytest

from dfc.api.listings import listing_query
from dfc.errors import BadRequest
from dfc.pages import ListingQuery


def test_the_query_of_a_listing():
    assert listing_query("id", {}) == ListingQuery("id")
    assert listing_query("id", {"prefix": "p", "delimiter": "/", "start_after": "a", "token": "b"}) == ListingQuery(
        "id", "p", "b", "/"
    )
    assert listing_query("id", {"start_after": "c", "token": "b"}).start_after == "c"
    with pytest.raises(BadRequest):
        listing_query("id", {"delimiter": "//"})
