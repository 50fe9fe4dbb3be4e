"""The web namespace and `/v1/objects` at a proxy: relay or redirect to the owner, listings as text, HTML or JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from dfc.errors import BadRequest
from dfc.http.answers import Answer, StreamAnswer, json_answer, text_answer
from dfc.http.common import OBJECT_QUERY, SAFETY_HEADERS, flag, page_limit
from dfc.http.exchange import Exchange
from dfc.http.relay import Relay
from dfc.limits import LIST_PAGE_MAX
from dfc.names import ObjectPath, check_bucket_name, parse_object_path
from dfc.pages import Page, listed
from dfc.proxy.cluster import Cluster
from dfc.proxy.html import bucket_list, object_list
from dfc.proxy.listing import Query, merged_pages, one_page
from dfc.wire import JSON, MSGPACK, NEXT_TOKEN_HEADER

HTML: Final = "text/html; charset=utf-8"
HTML_PAGE: Final = 1000


def _redirect_to(url: str, exchange: Exchange) -> Answer:
    return Answer(307, b"", [("Location", url + exchange.raw_target), ("Cache-Control", "no-store")])


def wants(exchange: Exchange) -> str:
    """What kind of listing the Accept header asks for: 'html', 'json', 'msgpack' or 'text'."""
    accept = exchange.headers.get("Accept", "")
    for kind, name in (("text/html", "html"), (JSON, "json"), (MSGPACK, "msgpack")):
        if kind in accept:
            return name
    return "text"


class WebRoutes:
    """Handlers of the paths that name buckets and objects."""

    def __init__(self, cluster: Cluster, relay: Relay) -> None:
        self._cluster = cluster
        self._relay = relay

    # --- objects

    async def web(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """`/{bucket}/{object…}`, `/{object}`, `/{bucket}/` and `/`: never a redirect unless `?redirect=1`."""
        path = parse_object_path(exchange.target_path)
        if not path.name:
            return await self._directory(exchange, path)
        if exchange.raw_query and flag(exchange.query_parameters(None), "redirect"):
            return await self._redirect(exchange, path)
        return await self._pass_on(exchange, path)

    async def object(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """`/v1/objects/{bucket}/{object…}`: 307 to the owner before a byte of the body is read; `?relay=1` relays."""
        path = parse_object_path(f"/{parameters[0]}/{parameters[1]}")
        if exchange.raw_query and flag(exchange.query_parameters(OBJECT_QUERY), "relay"):
            return await self._pass_on(exchange, path)
        return await self._redirect(exchange, path)

    def object_at_once(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer | None:
        """`object`, where that is a redirect of a read."""
        if exchange.raw_query:
            return None
        self._cluster.check_ready()
        path = parse_object_path(f"/{parameters[0]}/{parameters[1]}")
        owner = self._cluster.owner(self._cluster.bucket(path.bucket), path.name)
        return _redirect_to(owner.node.advertise_url, exchange)

    async def _owner_url(self, exchange: Exchange, path: ObjectPath, *, advertised: bool) -> str:
        if exchange.method == "PUT":
            bucket = await self._cluster.bucket_for_write(path.bucket)
        else:
            bucket = self._cluster.bucket(path.bucket)
        node = self._cluster.owner(bucket, path.name).node
        return node.advertise_url if advertised else node.url

    async def _redirect(self, exchange: Exchange, path: ObjectPath) -> Answer:
        return _redirect_to(await self._owner_url(exchange, path, advertised=True), exchange)

    async def _pass_on(self, exchange: Exchange, path: ObjectPath) -> Answer:
        return await self._relay.forward(exchange, await self._owner_url(exchange, path, advertised=False))

    # --- listings

    async def _directory(self, exchange: Exchange, path: ObjectPath) -> Answer:
        if exchange.method not in ("GET", "HEAD"):
            raise BadRequest("an object name is missing after the bucket")
        if not path.bucket:
            return await self._buckets(exchange)
        bucket = self._cluster.bucket(check_bucket_name(path.bucket))
        parameters = exchange.query_parameters(None)
        query = listing_query(bucket.id, parameters)
        kind = wants(exchange)
        if kind == "html":
            return await self._html(path.bucket, query, parameters)
        if kind in ("json", "msgpack"):
            return await listing_answer(self._cluster, query, page_limit(parameters, 1000), kind)
        limit = page_limit(parameters) if "limit" in parameters else None
        if limit is not None:
            return await self._text_page(query, limit)
        pages = merged_pages(self._cluster, query, LIST_PAGE_MAX)
        first = await anext(pages)  # before the head is sent: a 503 is still possible
        return StreamAnswer(200, _names(first, pages), [("Content-Type", "text/plain; charset=utf-8"), *SAFETY_HEADERS])

    async def _buckets(self, exchange: Exchange) -> Answer:
        counts = await self._cluster.counts()
        rows = [(bucket.name, *counts.get(bucket.id, (0, 0))) for bucket in self._cluster.map.buckets]
        kind = wants(exchange)
        if kind == "html":
            return text_answer(bucket_list(rows), HTML)
        if kind == "json":
            return json_answer({"buckets": [{"name": n, "objects": o, "bytes": b} for n, o, b in rows]})
        return text_answer("".join(f"{name}/\n" for name, _, _ in rows))

    async def _text_page(self, query: Query, limit: int) -> Answer:
        page = await one_page(self._cluster, query, limit)
        headers = [("Content-Type", "text/plain; charset=utf-8"), *SAFETY_HEADERS]
        if page.more:
            headers.append((NEXT_TOKEN_HEADER, quote(page.last, safe="")))
        return Answer(200, _name_lines([row[0] for row in page.rows], page.prefixes), headers)

    async def _html(self, bucket: str, query: Query, parameters: Mapping[str, str]) -> Answer:
        page = await one_page(self._cluster, query, page_limit(parameters, HTML_PAGE))
        following = {**parameters, "token": page.last}
        next_url = f"/{quote(bucket)}/?{urlencode(following)}" if page.more else None
        return text_answer(object_list(bucket, page.prefixes, listed(page.rows), next_url), HTML)


async def _names(first: Page, rest: AsyncIterator[Page]) -> AsyncIterator[bytes]:
    """The text of pages; an error after the first one breaks the connection."""
    yield _name_lines([row[0] for row in first.rows], first.prefixes)
    async for page in rest:
        yield _name_lines([row[0] for row in page.rows], page.prefixes)


def _name_lines(names: list[str], prefixes: list[str]) -> bytes:
    lines = sorted([*names, *prefixes]) if prefixes else names
    return ("\n".join(lines) + "\n").encode() if lines else b""


def listing_query(bucket_id: str, parameters: Mapping[str, str]) -> Query:
    """From the query of a listing; `token` is the last name or prefix of the page before."""
    if len(parameters.get("delimiter", "")) > 1:
        raise BadRequest("delimiter is one character")
    return Query(
        bucket_id,
        parameters.get("prefix", ""),
        max(parameters.get("token", ""), parameters.get("start_after", "")),
        parameters.get("delimiter", ""),
    )


async def listing_answer(cluster: Cluster, query: Query, limit: int, kind: str) -> Answer:
    """The page as `{"objects", "prefixes", "next_token"}`."""
    page = await one_page(cluster, query, limit)
    token = page.last if page.more else None
    value = {"objects": listed(page.rows), "prefixes": page.prefixes, "next_token": token}
    if kind == "msgpack":
        return Answer(200, msgspec.msgpack.encode(value), [("Content-Type", MSGPACK)])
    return json_answer(value)
