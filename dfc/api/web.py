"""Plain URLs at a proxy: objects by relay, and directories as text, HTML or JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from html import escape
from typing import Final
from urllib.parse import quote, urlencode

from dfc.api.owners import ProxyPeers, nodes_for, redirect_to, relay_to
from dfc.api.shared import as_json, as_msgpack, listing_query, page_answer, room_of, wants
from dfc.errors import BadRequest
from dfc.http.answers import SAFETY_HEADERS, Answer, StreamAnswer, flag, json_answer, page_limit, text_answer
from dfc.http.budget import LISTINGS
from dfc.http.exchange import Exchange
from dfc.http.faces import SAFE_METHODS, Authenticate, Face, Route
from dfc.http.relay import Relay
from dfc.limits import LIST_PAGE_DEFAULT, LISTING_STREAM_ROWS, format_size
from dfc.listing.pages import ListedObject, ListingQuery, Page, listed
from dfc.names import check_bucket_name, object_path, parse_object_path
from dfc.proxy.admin import ProxyServices
from dfc.wire import NEXT_TOKEN_HEADER

# --- Listings of objects as HTML, with links for people and programs. Every name is escaped; there are no scripts.

_STYLE: Final = (
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:60em}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.25em .8em;text-align:left}td.n{text-align:right;font-variant-numeric:tabular-nums}"
    "tr:nth-child(even){background:#f4f4f4}"
)


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def object_list(bucket: str, prefixes: Sequence[str], objects: Sequence[ListedObject], next_url: str | None) -> str:
    """Render a page of one bucket: prefixes first, then objects with size, samples and time."""
    rows = [
        f'<tr><td><a href="/{quote(bucket)}/?delimiter=/&amp;prefix={quote(prefix, safe="")}">{escape(prefix)}</a></td>'
        "<td></td><td></td><td></td></tr>"
        for prefix in prefixes
    ]
    rows += [
        f'<tr><td><a href="{escape(object_path(bucket, entry.name))}">{escape(entry.name)}</a></td>'
        f'<td class="n">{format_size(entry.size)}</td><td class="n">{_count(entry.samples)}</td>'
        f"<td>{entry.modified}</td></tr>"
        for entry in objects
    ]
    more = f'<p><a href="{escape(next_url)}">next page</a></p>' if next_url else ""
    head = "<tr><th>name</th><th>size</th><th>samples</th><th>modified</th></tr>"
    return _page(bucket, f'<p><a href="/ui/buckets">all buckets</a></p><table>{head}{"".join(rows)}</table>{more}')


# --- Plain URLs at a proxy: relay requests for objects to their owners, and list directories as text, HTML or JSON.

HTML: Final = "text/html; charset=utf-8"
HTML_ROWS_AT_ONCE: Final = 200


class ProxyPaths:
    """The handler of all paths that belong to no other face."""

    def __init__(self, uses: ProxyServices, relay: Relay) -> None:
        self._objects, self._buckets, self._listings = uses.objects, uses.buckets, uses.listings
        self._relay = relay

    async def path(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Answer `/{bucket}/{object…}`, `/{object}`, `/{bucket}/` and `/`; redirects only with `?redirect=1`."""
        path = parse_object_path(exchange.target_path)
        if not path.bucket and exchange.method in SAFE_METHODS and wants(exchange) == "html":
            # Also while the cluster is not ready: the pages say why.
            return Answer(303, b"", [("Location", "/ui"), ("Cache-Control", "no-store")])
        owners = self._objects.when_ready()  # before listings, too: an incomplete one looks like data loss
        if not path.name:
            return await self._directory(exchange, path.bucket)
        redirects = exchange.raw_query and flag(exchange.query_parameters(None), "redirect")
        nodes = await nodes_for(exchange, owners, path)
        return redirect_to(nodes[0], exchange) if redirects else await relay_to(nodes, exchange, self._relay, owners, path)

    # --- directories

    async def _directory(self, exchange: Exchange, bucket: str) -> Answer:
        if exchange.method not in ("GET", "HEAD"):
            raise BadRequest("an object name is missing after the bucket")
        if not bucket:
            return await self._root(exchange)
        bucket_id = self._listings.bucket_id(check_bucket_name(bucket))
        parameters = exchange.query_parameters(None)
        query = listing_query(bucket_id, parameters)
        kind = wants(exchange)
        if kind == "html":
            return await self._html(exchange, bucket, query, parameters)
        if kind in ("json", "msgpack"):
            render = as_json if kind == "json" else as_msgpack
            return await page_answer(exchange, self._listings, query, page_limit(parameters, LIST_PAGE_DEFAULT), render)
        if "limit" in parameters:
            return await page_answer(exchange, self._listings, query, page_limit(parameters), _as_text)
        await exchange.enter(LISTINGS, room_of(self._listings, query, LISTING_STREAM_ROWS))
        pages = self._listings.pages(query, LISTING_STREAM_ROWS)
        first = await anext(pages)  # before the head is sent: a 503 is still possible
        return StreamAnswer(200, _names(first, pages), [("Content-Type", "text/plain; charset=utf-8"), *SAFETY_HEADERS])

    async def _root(self, exchange: Exchange) -> Answer:
        rows = [(bucket.entry.name, bucket.objects, bucket.size) for bucket in await self._buckets.all()]
        if wants(exchange) == "json":
            return json_answer({"buckets": [{"name": n, "objects": o, "bytes": b} for n, o, b in rows]})
        return text_answer("".join(f"{name}/\n" for name, _, _ in rows))

    async def _html(self, exchange: Exchange, bucket: str, query: ListingQuery, parameters: Mapping[str, str]) -> Answer:
        def render(page: Page) -> Answer:
            following = {**parameters, "token": page.last}
            next_url = f"/{quote(bucket)}/?{urlencode(following)}" if page.more else None
            return text_answer(object_list(bucket, page.prefixes, listed(page.rows), next_url), HTML)

        limit = page_limit(parameters, LIST_PAGE_DEFAULT)
        return await page_answer(exchange, self._listings, query, limit, render, HTML_ROWS_AT_ONCE)


def _as_text(page: Page) -> Answer:
    headers = [("Content-Type", "text/plain; charset=utf-8"), *SAFETY_HEADERS]
    if page.more:
        headers.append((NEXT_TOKEN_HEADER, quote(page.last, safe="")))
    return Answer(200, _name_lines([row[0] for row in page.rows], page.prefixes), headers)


async def _names(first: Page, rest: AsyncIterator[Page]) -> AsyncIterator[bytes]:
    """Yield the text of pages; an error after the first one breaks the connection."""
    yield _name_lines([row[0] for row in first.rows], first.prefixes)
    async for page in rest:
        yield _name_lines([row[0] for row in page.rows], page.prefixes)


def _name_lines(names: list[str], prefixes: list[str]) -> bytes:
    lines = sorted([*names, *prefixes]) if prefixes else names
    return ("\n".join(lines) + "\n").encode() if lines else b""


def proxy_face(uses: ProxyServices, relay: Relay, peers: ProxyPeers, may_use: Authenticate) -> Face:
    """Make the face for `/{bucket}/{object…}` and directories: all paths that belong to no other face."""
    path = ProxyPaths(uses, relay).path
    rest = Route("/", dict.fromkeys(("GET", "PUT", "DELETE"), path), query=None)
    return Face("web", [], may_use, rest=peers.route(rest))
