"""`/ui/dataset`: what is in a dataset, where it came from, what was made of it, and programs that read it."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from dfc.api.shared import listing_query
from dfc.errors import BadRequest, DfcError, ObjectNotFound
from dfc.http.answers import Answer
from dfc.http.budget import LISTINGS
from dfc.http.exchange import Exchange
from dfc.http.faces import Endpoint, Handlers
from dfc.jobs.operations import OPERATIONS
from dfc.limits import DATASET_LOOK_S, DATASETS_BYTES, SAMPLE_FIELDS_SHOWN_MAX
from dfc.listing.datasets import DatasetShards, DatasetTally, NumberedNames, split
from dfc.listing.pages import Row, rfc3339
from dfc.names import check_bucket_name, check_object_name, object_path
from dfc.proxy.admin import ProxyServices
from dfc.proxy.samples import FieldPlace, SampleRow, ShardFacts
from dfc.ui.datasetfacts import (
    LINES_MAX,
    FieldFacts,
    Histogram,
    ShardLine,
    ShardLines,
    class_histogram,
    fields_of,
    is_short,
    size_histograms,
)
from dfc.ui.pages.samples import TILE_TEXT_BYTES, Tile, TileStyle, is_plain, tiles_of
from dfc.ui.rendering import Rendering, see_other
from dfc.ui.snippets import ShardUrls, Snippet, asked_url, snippets
from dfc.ui.traces import FoundReport, JobTraces, counting
from dfc.ui.words import above, dataset_url, new_job_url

QUERY: Final = frozenset(("bucket", "shards", "start", "seed"))
RANDOM_SAMPLES: Final = 12
FIELD_SHARDS: Final = 4  # whose first samples say what fields there are
FIELD_SAMPLES: Final = 16  # of each of them
EXAMPLE_EVERY: Final = 3  # of which one has its short texts read
READS: Final = 8  # requests to targets at a time, of one page
SEEDS: Final = 10**12
_ORDINAL: Final = re.compile("[0-9]{1,12}")


class ShownDataset(NamedTuple):
    """What a page is about. `start`: the first shard of the table; `seed`: of the samples."""

    bucket: str
    pattern: str
    start: int
    seed: int


class LookedFields(NamedTuple):
    """The fields of `samples` samples of `shards` shards."""

    fields: list[FieldFacts]
    samples: int
    shards: int


class DrawnSample(NamedTuple):
    """A sample: its ordinal in the dataset, the place of its shard, and its number in that."""

    ordinal: int
    at: int
    number: int


class DatasetFacts(NamedTuple):
    """What a listing says of a dataset. `missing`: how many numbers are not there; `lines`: the part of the table of shards
    that is shown; `usual_…`: the medians of all shards, with the first shards that are far from them, and how many are;
    `first`: the places of the shards to look at; `spec`: what jobs take."""

    shards: int
    samples: int
    bytes: int
    newest: str
    missing: int
    lines: list[ShardLine]
    usual_samples: int
    usual_size: float
    odd: list[ShardLine]
    odd_count: int
    first: list[int]
    drawn: list[DrawnSample]
    urls: ShardUrls
    spec: str


class DatasetPages(Handlers):
    """Handlers of the page of a dataset."""

    def __init__(self, uses: ProxyServices, rendering: Rendering) -> None:
        self._listings, self._shards = uses.listings, uses.shards
        self._uses = uses
        self._traces = JobTraces(uses)
        self._rendering = rendering

    async def dataset(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show a dataset. BucketNotFound, ObjectNotFound."""
        place = dataset_of(exchange.query_parameters(QUERY))
        bucket, pattern, _, seed = place
        await exchange.enter(LISTINGS, DATASETS_BYTES)
        names = NumberedNames.of(pattern)
        if names is not None and names.is_around and (found := await self._around(bucket, names)) not in ("", pattern):
            return see_other(dataset_url(bucket, found))
        shards = await self._listed(bucket, pattern)
        if names is not None and names == NumberedNames.around(shards.name(0)) and pattern != shards.narrowed():
            return see_other(dataset_url(bucket, shards.narrowed()))  # pages of shards link to it
        facts = await asyncio.to_thread(facts_of, place, shards, asked_url(exchange))
        look, tiles, jobs = await asyncio.gather(
            self._fields(bucket, shards, facts.first),
            self._tiles(bucket, shards, facts.drawn),
            self._traces.look(bucket, shards),
        )
        report = jobs.report
        counts = counting(bucket, pattern, [field.ext for field in look.fields], report)
        classes, sizes = await asyncio.to_thread(histograms_of, report)
        return await self._rendering.page(
            exchange,
            "dataset.html",
            place=place,
            prefix=shards.prefix,
            folders=above(bucket, pattern),
            facts=facts,
            looked=look,
            tiles=tiles,
            again=dataset_url(bucket, pattern, seed=(seed + 1) % SEEDS) + "#samples",
            pages=pages_of(place, facts.shards),
            jobs=jobs,
            report_path=object_path(report.job.bucket, report.name) if report else "",
            classes=classes,
            sizes=sizes,
            count=new_job_url("stats", bucket, facts.spec, counts),
            counts_classes="option.by" in counts,
            operations=[(name, new_job_url(name, bucket, facts.spec)) for name in OPERATIONS],
            snippets=self._snippets(facts, look),
        )

    async def _around(self, bucket: str, names: NumberedNames) -> str:
        """The pattern of the dataset with the shard whose page has led here. Empty if there is none. BucketNotFound."""
        tally = DatasetTally()

        def add(rows: list[Row]) -> None:
            tally.add(row for row in rows if split(row[0])[::2] == (names.before, names.after))

        async for page in self._listings.pages(listing_query(self._listings.bucket_id(bucket), {"prefix": names.before})):
            await asyncio.to_thread(add, page.rows)
        found = await asyncio.to_thread(tally.around, names)
        return found.pattern if found is not None else ""

    async def _listed(self, bucket: str, pattern: str) -> DatasetShards:
        """Return the shards of a pattern; if there are none, the one that is called so. BucketNotFound, ObjectNotFound."""
        for shards in (DatasetShards(pattern), DatasetShards.single(pattern)):
            query = listing_query(self._listings.bucket_id(bucket), {"prefix": shards.prefix})
            async for page in self._listings.pages(query):
                await asyncio.to_thread(shards.add, page.rows)
            if len(shards):
                await asyncio.to_thread(shards.sort)
                return shards
            if shards.names is None:
                break
        raise ObjectNotFound(f"bucket {bucket!r} has no shards {pattern!r}")

    def _snippets(self, facts: DatasetFacts, look: LookedFields) -> list[Snippet]:
        wants_token = self._rendering.reads_want_token
        return snippets(facts.urls, look.fields, look.samples, facts.samples, wants_token=wants_token) if facts.samples else []

    async def _fields(self, bucket: str, shards: DatasetShards, places: list[int]) -> LookedFields:
        """Look at the first samples of a few shards; what cannot be read now is left out."""
        found: dict[int, list[SampleRow]] = {}
        examples: dict[int, list[dict[str, bytes]]] = {}

        async def look(at: int) -> None:
            with suppress(DfcError):
                rows = await self._shards.samples(bucket, shards.name(at), 0, FIELD_SAMPLES)
                found[at] = list(map(TileStyle().of, rows))
                examples[at] = await self._examples(bucket, listed_facts(shards, at), found[at])

        with suppress(TimeoutError):
            async with asyncio.timeout(DATASET_LOOK_S):
                await asyncio.gather(*map(look, places))
        rows = [row for _, some in sorted(found.items()) for row in some]
        return LookedFields(
            fields_of(rows, *(each for _, some in sorted(examples.items()) for each in some)), len(rows), len(found)
        )

    async def _examples(self, bucket: str, shard: ShardFacts, rows: list[SampleRow]) -> list[dict[str, bytes]]:
        """Return the beginning of a field of each extension, and of more that are short, of a shard that is not compressed."""
        wanted: dict[str, FieldPlace] = {}
        for row in rows:
            for ext, field in row.members.items():
                if field.size and len(wanted) < SAMPLE_FIELDS_SHOWN_MAX:
                    wanted.setdefault(ext, field)
        if not is_plain(shard.name):
            return []
        more = [
            (ext, field) for row in rows[1::EXAMPLE_EVERY] for ext, field in row.members.items() if is_short(ext, field.size)
        ]
        more = more[:SAMPLE_FIELDS_SHOWN_MAX]
        places = [*wanted.values(), *(field for _, field in more)]
        found = await self._shards.beginnings(bucket, shard, places, TILE_TEXT_BYTES)
        first, rest = found[: len(wanted)], found[len(wanted) :]
        return [dict(zip(wanted, first, strict=True)), *({ext: content} for (ext, _), content in zip(more, rest, strict=True))]

    async def _tiles(self, bucket: str, shards: DatasetShards, wanted: list[DrawnSample]) -> list[Tile]:
        """Return tiles of samples; those that cannot be read now are left out."""
        room, found = asyncio.Semaphore(READS), dict[int, Tile]()

        async def look(sample: DrawnSample) -> None:
            shard = listed_facts(shards, sample.at)
            with suppress(DfcError):
                async with room:
                    rows = await self._shards.samples(bucket, shard.name, sample.number, 1)
                    tiles = await tiles_of(self._uses, bucket, shard, dict(enumerate(rows, sample.number)))
                    found.update((sample.ordinal, tile) for tile in tiles)

        with suppress(TimeoutError):
            async with asyncio.timeout(DATASET_LOOK_S):
                await asyncio.gather(*map(look, wanted))
        return [tile for _, tile in sorted(found.items())]

    ENDPOINTS = (Endpoint("/ui/dataset", {"GET": dataset}, QUERY),)


def facts_of(place: ShownDataset, shards: DatasetShards, base: str) -> DatasetFacts:
    """Compute what a page shows of a dataset, which may have a million shards: for a thread."""
    lines = ShardLines(place.bucket, shards)
    odd, odd_count = lines.odd()
    filled = [at for at in range(len(shards)) if shards.samples[at]]
    steps = min(FIELD_SHARDS, len(filled))
    return DatasetFacts(
        shards=len(shards),
        samples=sum(shards.samples),
        bytes=shards.total_size,
        newest=rfc3339(shards.newest_us),
        missing=shards.missing,
        lines=lines.page(place.start),
        usual_samples=round(lines.samples.median),
        usual_size=lines.sizes.median,
        odd=odd,
        odd_count=odd_count,
        first=[filled[(len(filled) - 1) * step // max(1, steps - 1)] for step in range(steps)],
        drawn=drawn(place.seed, shards),
        urls=ShardUrls.of_dataset(base, place.bucket, shards),
        spec=shards.spec(),
    )


def histograms_of(report: FoundReport | None) -> tuple[Histogram | None, list[Histogram]]:
    """The histograms of a report: for a thread, since it may have many classes."""
    return (None, []) if report is None else (class_histogram(report.totals), size_histograms(report.totals))


def listed_facts(shards: DatasetShards, at: int) -> ShardFacts:
    """What a listing says of a shard."""
    modified = rfc3339(shards.modified_us[at])
    return ShardFacts(shards.name(at), shards.sizes[at], shards.checksum(at), "", modified, shards.samples[at])


def drawn(seed: int, shards: DatasetShards) -> list[DrawnSample]:
    """Draw samples at random; the same ones for the same seed, as long as the shards are the same."""
    total = sum(shards.samples)
    ordinals = sorted(random.Random(seed).sample(range(total), min(RANDOM_SAMPLES, total)))
    found, before, left = list[DrawnSample](), 0, iter(ordinals)
    ordinal = next(left, None)
    for at, samples in enumerate(shards.samples):
        while ordinal is not None and ordinal < before + samples:
            found.append(DrawnSample(ordinal, at, ordinal - before))
            ordinal = next(left, None)
        if ordinal is None:
            break
        before += samples
    return found


def dataset_of(query: Mapping[str, str]) -> ShownDataset:
    """Return what the query of a page names. BadRequest, BadName."""
    start, seed = query.get("start", "0") or "0", query.get("seed", "0") or "0"
    if not (_ORDINAL.fullmatch(start) and _ORDINAL.fullmatch(seed)):
        raise BadRequest("start and seed must be numbers from 0, in decimal digits")
    if not query.get("bucket") or not query.get("shards"):
        raise BadRequest("the address must name a bucket and shards")
    bucket, pattern = check_bucket_name(query["bucket"]), query["shards"]
    shards = DatasetShards(pattern)
    check_object_name(pattern if shards.names is None else shards.names.name(shards.names.last))
    return ShownDataset(bucket, pattern, int(start), int(seed))


def pages_of(place: ShownDataset, count: int) -> list[tuple[str, str]]:
    """The other pages of the table of shards: words and addresses."""
    bucket, pattern, start, seed = place
    found = []
    if start:
        found.append(("Previous shards", dataset_url(bucket, pattern, start=max(0, start - LINES_MAX), seed=seed)))
    if start + LINES_MAX < count:
        found.append(("Next shards", dataset_url(bucket, pattern, start=start + LINES_MAX, seed=seed)))
    return [(word, f"{url}#shards") for word, url in found]
