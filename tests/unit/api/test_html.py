"""Directory pages for browsers: whatever a name is, it is text."""

from __future__ import annotations

from dfc.api.web import object_list
from dfc.listing.pages import ListedObject


def test_every_name_is_escaped():
    hostile = '<b onload="x">&\''
    entry = ListedObject(hostile, 1536, "e", "2023-11-14T22:13:20.000Z", 7, 8)
    page = object_list("b", [f"{hostile}/"], [entry], f"/b/?token={hostile}")
    assert "<b " not in page
    assert 'onload="' not in page.replace("&quot;", "")
    assert "&lt;b" in page
    assert "1.54 kB" in object_list("b", [], [entry], None)
    assert "next page" not in object_list("b", [], [entry], None)
