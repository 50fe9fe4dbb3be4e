"""Which job may write which names: two at a time never write the same ones, or what stayed would be some of each.

Claims are the coordinator's: it alone accepts jobs. They are nowhere but in its memory, and follow from the journal, so that
a coordinator that starts has those of all jobs that have not ended.
"""

from __future__ import annotations

from dfc.errors import Conflict
from dfc.jobs.pattern import OutputPattern, may_meet


class Claims:
    """The output names of jobs that have not ended, by job."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, OutputPattern]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def check(self, bucket: str, pattern: OutputPattern) -> None:
        """Conflict when another job could write one of these names."""
        for job_id, (other_bucket, other) in self._held.items():
            if other_bucket == bucket and may_meet(pattern, other):
                raise Conflict(f"job {job_id} is already writing {other.text!r} in the same bucket")

    def take(self, job_id: str, bucket: str, pattern: OutputPattern) -> None:
        """For a job that the journal has."""
        self._held[job_id] = (bucket, pattern)

    def release(self, job_id: str) -> None:
        """Of a job whose end the journal has. One that was left to the next start keeps its claim until then: what it has
        staged may still be published."""
        self._held.pop(job_id, None)
