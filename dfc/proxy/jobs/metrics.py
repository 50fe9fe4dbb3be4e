"""Prometheus metrics of jobs (docs/metrics.md). Only the event loop writes them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dfc.jobs.records import STATES, JobRecord
from dfc.jobs.tasks import TaskResult

DURATION_BUCKETS_S: Final = (0.5, 1, 5, 10, 60, 300, 600, 3600, 6 * 3600, 86_400)


class JobStats:
    """Counts since the start of this proxy."""

    def __init__(self) -> None:
        self.retries = 0
        self.tasks: Counter[str] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.finished: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, float] = {}
        self._durations: dict[str, list[int]] = {}

    def count_task(self, operation: str, result: TaskResult) -> None:
        self.tasks[operation] += 1
        self.bytes_in += result.bytes_in
        self.bytes_out += result.bytes_out

    def count_job(self, job: JobRecord) -> None:
        """Count a job that has ended."""
        self.finished[job.operation, job.state] += 1
        if job.started_us is None or job.finished_us is None:
            return
        seconds = (job.finished_us - job.started_us) / 1e6
        counts = self._durations.setdefault(job.operation, [0] * (len(DURATION_BUCKETS_S) + 1))
        counts[bisect_left(DURATION_BUCKETS_S, seconds)] += 1
        self._seconds[job.operation] = self._seconds.get(job.operation, 0.0) + seconds

    def families(self, states: Mapping[str, int]) -> Iterable[Metric]:
        jobs = GaugeMetricFamily("dfc_jobs", "Jobs in the journal by state", labels=("state",))
        for each in STATES:
            jobs.add_metric((each,), states.get(each, 0))
        yield jobs
        finished = CounterMetricFamily("dfc_jobs_finished", "Jobs that ended", labels=("operation", "state"))
        for ended, count in sorted(self.finished.items()):
            finished.add_metric(ended, count)
        yield finished
        seconds = HistogramMetricFamily("dfc_job_seconds", "Time from the start of a job to its end", labels=("operation",))
        for name, counts in sorted(self._durations.items()):
            total, buckets = 0, []
            for bound, count in zip((*map(str, DURATION_BUCKETS_S), "+Inf"), counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            seconds.add_metric((name,), buckets, self._seconds[name])
        yield seconds
        tasks = CounterMetricFamily("dfc_job_tasks", "Tasks that succeeded", labels=("operation",))
        for name, count in sorted(self.tasks.items()):
            tasks.add_metric((name,), count)
        yield tasks
        yield CounterMetricFamily("dfc_job_task_retries", "Tasks run again after a failure", self.retries)
        yield CounterMetricFamily("dfc_job_read_bytes", "Bytes read by tasks", self.bytes_in)
        yield CounterMetricFamily("dfc_job_written_bytes", "Bytes written by tasks", self.bytes_out)
