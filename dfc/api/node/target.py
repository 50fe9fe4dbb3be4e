"""The routes under `/v1/node/` at a target."""

from __future__ import annotations

from dfc.api.node.batch_target import OwnBatchHandlers
from dfc.api.node.holdings import KEYS_QUERY, PAGE_QUERY, HoldingHandlers
from dfc.api.node.job_inputs import INDEX_QUERY, LOCATE_QUERY, SHARDS_QUERY, JobInputHandlers
from dfc.api.node.staging import SITE_QUERY, STAGED_QUERY, StagingHandlers
from dfc.http.face import Authenticate, Face
from dfc.http.router import Route


def target_face(
    holdings: HoldingHandlers,
    staging: StagingHandlers,
    inputs: JobInputHandlers,
    batches: OwnBatchHandlers,
    may_use: Authenticate,
) -> Face:
    """Make the face; all its routes require the token."""
    outputs = {"GET": staging.get, "PUT": staging.put}
    routes = [
        Route("/v1/node/objects", {"GET": holdings.page}, query=PAGE_QUERY, internal=True),
        Route("/v1/node/buckets", {"GET": holdings.counts}, internal=True),
        Route("/v1/node/buckets/{id}", {"DELETE": holdings.remove_bucket}, internal=True),
        Route("/v1/node/samples", {"GET": holdings.keys}, query=KEYS_QUERY, internal=True),
        Route("/v1/node/batch", {"POST": batches.batch}, internal=True),
        Route("/v1/node/staged", {"GET": staging.totals}, internal=True),
        Route("/v1/node/staged/{job}", {"DELETE": staging.discard}, internal=True),
        Route("/v1/node/staged/{job}/prepare", {"POST": staging.prepare}, internal=True),
        Route("/v1/node/staged/{job}/publish", {"POST": staging.publish}, internal=True),
        Route("/v1/node/staged/{job}/{bucket}/{object…}", outputs, query=STAGED_QUERY, internal=True),
        Route("/v1/node/deposits", {"GET": staging.site}, query=SITE_QUERY, internal=True),
        Route("/v1/node/shards", {"GET": inputs.shards}, query=SHARDS_QUERY, internal=True),
        Route("/v1/node/locate", {"GET": inputs.locate}, query=LOCATE_QUERY, internal=True),
        Route("/v1/node/index", {"GET": inputs.index}, query=INDEX_QUERY, internal=True),
        Route("/v1/node/map", {"POST": holdings.take_map}, internal=True),
        Route("/v1/node/scrub", {"GET": holdings.scrub_status, "POST": holdings.start_scrub}, internal=True),
    ]
    return Face("node", routes, may_use)
