"""Looking into shards whose names are out to do harm."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dfc.addresses import Refusals
from dfc.errors import BadName, TooLarge, Unavailable
from dfc.http.peer import AnswerTooLong
from dfc.http.retry import RemoteError
from dfc.proxy import samples
from dfc.proxy.samples import ShardViews
from dfc.wire import SAMPLES_HEADER, UNSAMPLED_HEADER


class _Control:
    """A target that answers with more than anybody takes."""

    async def fetch(self, *_given: Any, **_more: Any) -> tuple[int, str, bytes]:
        raise AnswerTooLong("too long")

    async def open_stream(self, url: str, _headers: Any) -> Any:
        raise AssertionError(f"{url} was asked")


class _Counting:
    """A target that answers with these headers."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers
        self.closed = 0

    async def open_stream(self, url: str, _headers: Any) -> Any:
        if "list=members" not in url and "list=samples" not in url:
            raise RemoteError(400, b'{"error": {"code": "bad_request", "message": "no such list"}}', url)
        return self

    def close(self) -> None:
        self.closed += 1


class _Looking(_Counting):
    """A target that answers whatever is asked."""

    async def open_stream(self, _url: str, _headers: Any) -> Any:
        return self


def views(monkeypatch: pytest.MonkeyPatch, control: object = None) -> ShardViews:
    monkeypatch.setattr(samples, "in_order", lambda nodes, _refusals: nodes)
    node = SimpleNamespace(url="http://target")
    cluster = SimpleNamespace(control=control or _Control(), readers=lambda *_given: [node], bucket=lambda name: name)
    return ShardViews(cast(Any, cluster), cast(Refusals, None))


def test_names_that_are_too_many_are_said_to_be_and_no_other_copy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooLarge, match="too many, or too long"):
        asyncio.run(views(monkeypatch).samples("b", "s.tar", 0, 60))


@pytest.mark.parametrize("name", ["../../../node/figures", "", "a/../b", "nul\0"])
def test_no_name_leads_to_another_route(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(BadName):
        asyncio.run(views(monkeypatch).head("b", name, 10))


def test_the_members_of_no_sample_are_counted_by_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    target = _Counting({UNSAMPLED_HEADER: "7"})
    assert asyncio.run(views(monkeypatch, target).unsampled_count("b", "s.tar")) == 7
    assert target.closed == 1


@pytest.mark.parametrize("date", ["never", "Mon, 99 Jan 2024 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:00 +9999", ""])
def test_a_date_that_is_none_is_no_error_of_ours(monkeypatch: pytest.MonkeyPatch, date: str) -> None:
    target = _Looking({SAMPLES_HEADER: "7", "Content-Range": "bytes 0-0/10", "Last-Modified": date})
    with pytest.raises(Unavailable, match="unexpected answer"):
        asyncio.run(views(monkeypatch, target).shard("b", "s.tar"))
    assert target.closed == 1
