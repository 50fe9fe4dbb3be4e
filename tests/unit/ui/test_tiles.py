"""How a page is asked to show samples."""

from __future__ import annotations

import pytest

from dfc.errors import BadRequest
from dfc.proxy.shardviews import FieldPlace, SampleRow
from dfc.ui.pages.tiles import SHOWN_MAX, TileStyle, style_of


def test_a_style_and_its_address() -> None:
    assert style_of({}) == TileStyle(192, ())
    assert style_of({"pixels": "", "fields": " , "}).query == {}
    style = style_of({"pixels": "384", "fields": "JPG, cls,jpg"})
    assert style == TileStyle(384, ("jpg", "cls"))
    assert style_of(style.query) == style


def test_only_the_fields_that_are_chosen() -> None:
    row = SampleRow("a", {"jpg": FieldPlace(512, 9), "cls": FieldPlace(2048, 1)})
    assert list(TileStyle(192, ("cls", "txt")).of(row).members) == ["cls"]
    assert TileStyle().of(row) == row


@pytest.mark.parametrize("query", [{"pixels": "97"}, {"pixels": "x"}, {"fields": ",".join(map(str, range(SHOWN_MAX + 1)))}])
def test_what_cannot_be_asked(query: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        style_of(query)
