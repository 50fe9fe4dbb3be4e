"""The routes under `/v1/node/` at a target."""

from __future__ import annotations

from dfc.api.node.batch_target import OwnBatchHandlers
from dfc.api.node.compare import CompareHandlers
from dfc.api.node.copies import CopyHandlers
from dfc.api.node.figures import FigureHandlers
from dfc.api.node.holdings import HoldingHandlers
from dfc.api.node.job_inputs import JobInputHandlers
from dfc.api.node.searching import OwnSearchHandlers
from dfc.api.node.staging import StagingHandlers
from dfc.http.router import Authenticate, Face, routes_of


def target_face(
    holdings: HoldingHandlers,
    staging: StagingHandlers,
    inputs: JobInputHandlers,
    batches: OwnBatchHandlers,
    searches: OwnSearchHandlers,
    copies: CopyHandlers,
    compare: CompareHandlers,
    figures: FigureHandlers,
    may_use: Authenticate,
) -> Face:
    """Make the face; all its routes require the token."""
    return Face("node", routes_of(holdings, staging, inputs, batches, searches, copies, compare, figures), may_use)
