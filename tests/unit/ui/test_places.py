"""What the address of a page about a shard may say."""

from __future__ import annotations

import pytest

from dfc.errors import BadName, BadRequest
from dfc.ui.pages.samples import ShownPlace, place_of


def test_what_is_named_and_what_templates_are_told() -> None:
    query = {"bucket": "b", "object": "x/a b.tar", "start": "7"}
    place = place_of(query, "start")
    assert place == ShownPlace("b", "x/a b.tar", 7)
    assert place_of(query, "number").ordinal == place_of({**query, "start": ""}, "start").ordinal == 0
    assert place.shown == {
        "bucket": "b",
        "name": "x/a b.tar",
        "folders": [("b", "/ui/buckets/b"), ("x/", "/ui/buckets/b?prefix=x%2F")],
        "url": "/b/x/a%20b.tar",
    }


@pytest.mark.parametrize("start", ["-1", "1.5", "x", "١", "1" * 16, " 1"])
def test_ordinals_are_short_decimal_numbers(start: str) -> None:
    with pytest.raises(BadRequest, match="start must be a number from 0"):
        place_of({"bucket": "b", "object": "x", "start": start}, "start")


@pytest.mark.parametrize("query", [{}, {"bucket": "b"}, {"object": "x"}])
def test_both_must_be_named(query: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match="a bucket and an object"):
        place_of(query, "start")


@pytest.mark.parametrize("query", [{"bucket": "../b", "object": "x"}, {"bucket": "b", "object": "x/../y"}])
def test_names_are_checked(query: dict[str, str]) -> None:
    with pytest.raises(BadName):
        place_of(query, "start")
