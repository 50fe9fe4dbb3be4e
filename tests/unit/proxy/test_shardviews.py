"""Looking into shards whose names are out to do harm."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dfc.addresses import Refusals
from dfc.errors import BadName, TooLarge
from dfc.http.calls.peer import AnswerTooLong
from dfc.proxy import shardviews
from dfc.proxy.shardviews import ShardViews


class _Control:
    """A target that answers with more than anybody takes."""

    async def fetch(self, *_given: Any, **_more: Any) -> tuple[int, str, bytes]:
        raise AnswerTooLong("too long")

    async def open_stream(self, url: str, _headers: Any) -> Any:
        raise AssertionError(f"{url} was asked")


def views(monkeypatch: pytest.MonkeyPatch) -> ShardViews:
    monkeypatch.setattr(shardviews, "in_order", lambda nodes, _refusals: nodes)
    node = SimpleNamespace(url="http://target")
    cluster = SimpleNamespace(control=_Control(), readers=lambda *_given: [node], bucket=lambda name: name)
    return ShardViews(cast(Any, cluster), cast(Refusals, None))


def test_names_that_are_too_many_are_said_to_be_and_no_other_copy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooLarge, match="too many, or too long"):
        asyncio.run(views(monkeypatch).samples("b", "s.tar", 0, 60))


@pytest.mark.parametrize("name", ["../../../node/figures", "", "a/../b", "nul\0"])
def test_no_name_leads_to_another_route(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(BadName):
        asyncio.run(views(monkeypatch).head("b", name, 10))
