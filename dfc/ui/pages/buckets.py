"""`/ui/buckets`: the buckets, their settings, and the objects in them."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode

from dfc.api.listings import datasets_of, listing_query
from dfc.api.listings import page_of as listed_page
from dfc.errors import BadName, BadRequest, DfcError, Unavailable
from dfc.http.answers import Answer
from dfc.http.budget import PAGES
from dfc.http.exchange import Exchange
from dfc.http.router import Endpoint, Handlers
from dfc.limits import COPIES_MAX
from dfc.names import HIDDEN_PREFIX, RESERVED_SEGMENTS, check_bucket_name, object_path
from dfc.pages import listed
from dfc.proxy.buckets import CountedBucket
from dfc.proxy.uses import ProxyUses
from dfc.shards import is_plain
from dfc.tar.index.format import ENDINGS
from dfc.ui.addresses import above, dataset_url, datasets_url, page_of, search_url, shard_url
from dfc.ui.pages.login import form_of
from dfc.ui.rendering import Rendering, see_other

PAGE_OBJECTS: Final = 200
DATASETS_MAX: Final = 1000  # on a page
DATASETS_QUERY: Final = frozenset(("prefix",))
QUERY: Final = frozenset(("prefix", "token"))
CHANGES: Final = frozenset(("POST",))
NAME_RULE: Final = "this cannot be its name: up to 63 letters, digits, '.', '_' and '-'; it begins with a letter or a digit"
DURABILITIES: Final = {
    "fsync": "on the disk before an upload is answered (fsync)",
    "relaxed": "on the disk up to 30 seconds after an upload is answered (relaxed)",
}
_NUMBER: Final = re.compile("[0-9]{1,4}")


class BucketPages(Handlers):
    """Handlers of the pages about buckets."""

    def __init__(self, uses: ProxyUses, rendering: Rendering) -> None:
        self._buckets, self._listings, self._admin = uses.buckets, uses.listings, uses.admin
        self._rendering = rendering

    async def all(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show all buckets."""
        return await self._all(exchange)

    async def _all(self, exchange: Exchange, status: int = 200, wrong: str = "", given: str = "") -> Answer:
        try:
            found = await self._buckets.all()
        except Unavailable:  # what is down has some of the objects; the names are known all the same
            found = [CountedBucket(entry, 0, 0, exact=False) for entry in self._admin.cluster_map().buckets]
        return await self._rendering.page(
            exchange, "buckets.html", status, buckets=found, wrong=wrong, given=given, copies_max=COPIES_MAX
        )

    async def create(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Create a bucket, and show it; an error is shown beside the form."""
        fields = await form_of(exchange)
        given = fields.get("name", "")
        try:
            name = check_bucket_name(given)
            await self._buckets.create(name, number(fields, "copies"), "fsync")
        except Unavailable:
            raise
        except BadName as error:
            return await self._all(exchange, error.status, error.message if given in RESERVED_SEGMENTS else NAME_RULE, given)
        except DfcError as error:
            return await self._all(exchange, error.status, error.message, given)
        return see_other(page_of(name))

    async def one(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Show a bucket, with a page of its objects."""
        return await self._one(exchange, check_bucket_name(parameters[0]))

    async def _one(self, exchange: Exchange, name: str, status: int = 200, wrong: str = "") -> Answer:
        parameters = exchange.query_parameters(QUERY)
        prefix = parameters.get("prefix", "")
        bucket = await self._buckets.get(name)
        query = listing_query(bucket.entry.id, {**parameters, "delimiter": "/"})
        page = await listed_page(exchange, self._listings, query, PAGE_OBJECTS)
        own = await self._listings.page(listing_query(bucket.entry.id, {"prefix": HIDDEN_PREFIX}), 1) if not prefix else None
        following = {"prefix": prefix, "token": page.last} if page.more else None
        return await self._rendering.page(
            exchange,
            "bucket.html",
            status,
            bucket=bucket,
            prefix=prefix,
            folders=[(each, f"{page_of(name)}?{urlencode({'prefix': each})}") for each in page.prefixes],
            objects=[(each, object_path(name, each.name)) for each in listed(page.rows)],
            shards={each[0]: shard_url(name, each[0]) for each in page.rows if each[4] is not None},
            hidden_page=f"{page_of(name)}?{urlencode({'prefix': HIDDEN_PREFIX})}" if own and own.rows else "",
            above=above(name, prefix),
            folder=prefix[: prefix.rfind("/") + 1],
            folder_path=object_path(name, prefix[: prefix.rfind("/") + 1]),
            endings=tuple(ENDINGS),
            datasets_page=datasets_url(name, prefix),
            search_page=search_url(name, _folder(prefix)),
            first_page=f"{page_of(name)}?{urlencode({'prefix': prefix})}" if "token" in parameters else "",
            next_page=f"{page_of(name)}?{urlencode(following)}" if following else "",
            durabilities=DURABILITIES,
            copies_max=COPIES_MAX,
            wrong=wrong,
        )

    async def datasets(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Show the shards of a bucket grouped by their names."""
        name, given = check_bucket_name(parameters[0]), exchange.query_parameters(DATASETS_QUERY)
        found = await datasets_of(exchange, self._listings, listing_query(self._listings.bucket_id(name), given))
        return await self._rendering.page(
            exchange,
            "datasets.html",
            bucket=name,
            above=above(name, given.get("prefix", "")),
            datasets=[(each, dataset_url(name, each.pattern)) for each in found[:DATASETS_MAX]],
            search_page=search_url(name, _folder(given.get("prefix", ""))),
            more=len(found) - DATASETS_MAX,
        )

    async def change(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Change the settings of a bucket."""
        name, fields = check_bucket_name(parameters[0]), await form_of(exchange)
        durability = fields.get("durability")
        try:
            if durability not in DURABILITIES:
                raise BadRequest(f"durability is one of {', '.join(DURABILITIES)}")
            await self._buckets.change(name, number(fields, "copies"), durability, number(fields, "min_copies") or 0)  # type: ignore[arg-type]
        except Unavailable:
            raise
        except DfcError as error:
            return await self._one(exchange, name, error.status, error.message)
        return see_other(page_of(name))

    async def delete(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        """Delete a bucket with everything in it, if its name was typed."""
        name, fields = check_bucket_name(parameters[0]), await form_of(exchange)
        if fields.get("name") != name:
            return await self._one(exchange, name, 400, "type the name of the bucket to delete it with everything in it")
        await self._buckets.delete(name, force=True)
        return see_other("/ui/buckets")

    ENDPOINTS = (
        Endpoint("/ui/buckets", {"GET": all, "POST": create}, budget=PAGES),
        Endpoint("/ui/buckets/{bucket}", {"GET": one, "POST": change}, QUERY, by_coordinator=CHANGES),
        Endpoint("/ui/buckets/{bucket}/datasets", {"GET": datasets}, DATASETS_QUERY),
        Endpoint("/ui/buckets/{bucket}/delete", {"POST": delete}, by_coordinator=CHANGES),
    )


def _folder(prefix: str) -> str:
    """The folder that a prefix names; empty if it names none."""
    return prefix if prefix.endswith("/") and is_plain(prefix.rstrip("/")) else ""


def number(fields: dict[str, str], name: str) -> int | None:
    """Return a number of copies; None if the field is empty. BadRequest."""
    text = fields.get(name, "")
    if not text:
        return None
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= COPIES_MAX:
        raise BadRequest(f"{name} must be a number from 1 to {COPIES_MAX}")
    return int(text)
