"""Directory pages for browsers: whatever a name is, it is text."""

from __future__ import annotations

import pytest

from dfc.api.web.html import bucket_list, human_bytes, object_list
from dfc.pages import ListedObject


def test_every_name_is_escaped():
    hostile = '<b onload="x">&\''
    entry = ListedObject(hostile, 1536, "e", "2023-11-14T22:13:20.000Z", 7, 8)
    for page in (
        object_list("b", [f"{hostile}/"], [entry], f"/b/?token={hostile}"),
        bucket_list([(hostile, 1, 2)]),
    ):
        assert "<b " not in page
        assert 'onload="' not in page.replace("&quot;", "")
        assert "&lt;b" in page
    assert "1.5 KiB" in object_list("b", [], [entry], None)
    assert "next page" not in object_list("b", [], [entry], None)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 52, "4096.0 TiB")]
)
def test_human_bytes(size, text):
    assert human_bytes(size) == text
