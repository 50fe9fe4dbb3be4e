"""`/ui/jobs/new`: the operations, and a form for a job of one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from dfc.api.listings import datasets_of, listing_query
from dfc.errors import BadRequest, DfcError, NotFound, OutputExists
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.router import ALL_METHODS, Endpoint, Handlers
from dfc.limits import JOB_LABEL_CHARS_MAX
from dfc.names import check_bucket_name
from dfc.proxy.uses import ProxyUses
from dfc.ui.jobform import field_of, job_entered, operation_of, option_fields, values_of
from dfc.ui.pages.login import form_of
from dfc.ui.rendering import Rendering, see_other
from dfc.ui.samejob import SameJob, same_job
from dfc.wire.catalogue import DatasetInfo, OperationInfo
from dfc.wire.jobs import Job

FILLED: Final = ("bucket", "shards", "output_bucket", "pattern", "overwrite", "option.by")
QUERY: Final = frozenset(("operation", "again", *FILLED))
OWN_FIELDS: Final = frozenset(("bucket", "shards", "more", "output_bucket", "pattern", "overwrite", "label"))
CHOICES_MAX: Final = 200  # buckets and datasets that are proposed
OVERWRITE_HERE: Final = "tick “Replace objects with these names” to allow this"
TITLES: Final = {
    "bucket": "Bucket to read", "shards": "Shards to read", "more": "More inputs", "output_bucket": "Bucket to write",
    "pattern": "Names of the outputs", "overwrite": "Replace objects with these names", "label": "Label",
}  # fmt: skip
DATASETS_S: Final = 2.0  # to find those of a bucket: they are a help, and the form is there without


@dataclass
class Shown:
    """What the form shows besides its fields. `problems` are by field, `wrong` is about the whole."""

    values: Mapping[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    wrong: str = ""
    status: int = 200
    plan: Mapping[str, Any] | None = None
    same: SameJob | None = None


class NewJobPages(Handlers):
    """Handlers of the form for jobs."""

    def __init__(self, uses: ProxyUses, rendering: Rendering) -> None:
        self._jobs, self._operations = uses.jobs, uses.operations
        self._admin, self._listings = uses.admin, uses.listings
        self._rendering = rendering

    async def form(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Show the operations, or the form for one. With `again`: filled as for that job. JobNotFound, JobSpecGone."""
        query = exchange.query_parameters(QUERY)
        if query.get("again"):
            spec = await self._jobs.spec(query["again"])
            info = await self._info(operation_of(spec))
            return await self._shown(exchange, info, Shown(values_of(spec, info)))
        given = {name: query[name] for name in FILLED if query.get(name)}
        if not query.get("operation"):
            return await self._list(exchange, given)
        return await self._shown(exchange, await self._info(query["operation"]), Shown(given))

    async def _list(self, exchange: Exchange, given: Mapping[str, str]) -> Answer:
        found = (await self._operations.all()).operations
        operations = [(each, f"/ui/jobs/new?{urlencode({'operation': each.name, **given})}") for each in found]
        return await self._rendering.page(exchange, "operations.html", operations=operations)

    async def _info(self, name: str) -> OperationInfo:
        for each in (await self._operations.all()).operations:
            if each.name == name:
                return each
        raise NotFound(f"there is no operation {name[:80]!r}")

    async def entered(self, exchange: Exchange, _parameters: tuple[str, ...]) -> Answer:
        """Check the job that was entered, run it, or look for the datasets of its bucket."""
        exchange.query_parameters(frozenset())
        fields = await form_of(exchange)
        info, step = await self._info(fields.pop("operation", "")), fields.pop("do", "check")
        unknown = fields.keys() - OWN_FIELDS - {each.name for each in option_fields(info.options)}
        if unknown or step not in ("look", "check", "run"):
            raise BadRequest(f"this form has no field {min(unknown)[:80]!r}" if unknown else "a form is checked or run")
        if step == "look":
            return await self._shown(exchange, info, Shown(fields))
        job = job_entered(info, fields, dry_run=step == "check")
        shown = Shown(fields, job.problems, status=400 if job.problems else 200)
        if not job.problems:
            try:
                said = await self._jobs.submit(job.spec)
            except DfcError as error:
                _note(shown, error, info)
            else:
                if isinstance(said, Job):
                    return see_other(f"/ui/jobs/{said.id}")
                shown.plan, shown.same = said, same_job(job_entered(info, fields).spec)
        return await self._shown(exchange, info, shown)

    async def _shown(self, exchange: Exchange, info: OperationInfo, shown: Shown) -> Answer:
        datasets, why_none = await self._datasets(exchange, shown.values.get("bucket", ""))
        shards = shown.values.get("shards", "") or "**"
        return await self._rendering.page(
            exchange,
            "newjob.html",
            shown.status,
            info=info,
            fields=option_fields(info.options),
            shown=shown,
            titles=TITLES,
            buckets=[each.name for each in self._admin.cluster_map().buckets][:CHOICES_MAX],
            datasets=datasets[:CHOICES_MAX],
            chosen=[each for each in datasets if shards in ("**", each.pattern)],
            why_none=why_none,
            label_max=JOB_LABEL_CHARS_MAX,
        )

    async def _datasets(self, exchange: Exchange, bucket: str) -> tuple[Sequence[DatasetInfo], str]:
        """The datasets of a bucket, or why they cannot be proposed."""
        if not bucket:
            return [], ""
        try:
            async with asyncio.timeout(DATASETS_S):
                bucket_id = self._listings.bucket_id(check_bucket_name(bucket))
                return await datasets_of(exchange, self._listings, listing_query(bucket_id, {})), ""
        except TimeoutError:
            return [], "the bucket has many objects: its datasets are not looked for here"
        except DfcError as error:
            return [], error.message

    ENDPOINTS = (Endpoint("/ui/jobs/new", {"GET": form, "POST": entered}, QUERY, by_coordinator=ALL_METHODS),)


def _note(shown: Shown, error: DfcError, info: OperationInfo) -> None:
    """Note what the server says where it belongs."""
    shown.status, place = error.status, field_of(error, info)
    message = error.message.replace(OutputExists.ADVICE, OVERWRITE_HERE)
    if place:
        shown.problems[place] = message
    else:
        shown.wrong = message
