"""Claims of output names, so that two jobs never write the same names at the same time and mix their outputs.

Only the coordinator accepts jobs, and it keeps the claims in memory. They follow from the journal, so a coordinator that starts
has the claims of all unfinished jobs.
"""

from __future__ import annotations

from dfc.errors import Conflict
from dfc.jobs.pattern import OutputPattern, may_meet


class Claims:
    """The output patterns of unfinished jobs, by job."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, OutputPattern]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def check(self, bucket: str, pattern: OutputPattern) -> None:
        """Raise Conflict when another job could write one of these names."""
        for job_id, (other_bucket, other) in self._held.items():
            if other_bucket == bucket and may_meet(pattern, other):
                raise Conflict(f"job {job_id} is already writing {other.text!r} in the same bucket")

    def take(self, job_id: str, bucket: str, pattern: OutputPattern) -> None:
        """Claim the names for a job that is in the journal."""
        self._held[job_id] = (bucket, pattern)

    def release(self, job_id: str) -> None:
        """Release the claim of a job whose end is in the journal. A job that is left to the next start keeps its claim until
        then, because what it has staged may still be published."""
        self._held.pop(job_id, None)
