"""Write the lineage object of a job, `.dfc/jobs/ID.json`: its spec, what it read and what it wrote, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from dfc.jobs.journal import Journal
from dfc.jobs.records import JobRecord, OutputSummary
from dfc.jobs.tasks import InputShard
from dfc.names import HIDDEN_PREFIX
from dfc.pages import rfc3339

GROUP: Final = 512  # entries per piece
_encode: Final = msgspec.json.encode


def lineage_name(job_id: str) -> str:
    return f"{HIDDEN_PREFIX}jobs/{job_id}.json"


def lineage_pieces(
    job: JobRecord, journal: Journal, inputs: Sequence[Sequence[InputShard]], summary: OutputSummary, program: str
) -> Iterator[bytes]:
    """Yield the JSON of a lineage in pieces. Blocking. `inputs` has one list for each input of the job."""
    started = None if job.started_us is None else rfc3339(job.started_us)
    head: dict[str, Any] = {
        "id": job.id, "operation": job.operation, "label": job.label, "program": f"dfc {program}",
        "created": rfc3339(job.created_us), "started": started, "spec": msgspec.Raw(journal.spec(job.id)),
        "output": summary,
    }  # fmt: skip
    yield _encode(head)[:-1] + b',\n"inputs": ['
    for number, shards in enumerate(inputs):
        yield b",\n[" if number else b"\n["
        yield from _entries(
            {name: getattr(shard, name) for name in ("bucket", "name", "version", "checksum", "size", "samples")}
            for shard in shards
        )
        yield b"]"
    yield b'],\n"outputs": ['
    yield from _entries(
        {"name": o.name, "checksum": o.checksum, "size": o.size, "samples": o.samples} for o in journal.outputs(job.id)
    )
    yield b"]}\n"


def _entries(values: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    rest, first = iter(values), True
    while group := list(islice(rest, GROUP)):
        yield (b"\n" if first else b",\n") + b",\n".join(map(_encode, group))
        first = False
