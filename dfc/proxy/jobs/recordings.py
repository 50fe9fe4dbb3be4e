"""What is recorded of the jobs of this proxy: in memory while they run, in files of the journal's directory for later.

A file is written now and then while its job runs, when the proxy stops and when the job has ended; it goes when the job leaves
the list. It is for people who look at the job: whatever is wrong with a file, the job does not know. In a cluster with several
proxies, each has what it recorded itself.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable
from typing import Final

from dfc.errors import OperatorError
from dfc.filesystem import FileSystem
from dfc.jobs.recording.kept import JobSummary, SummaryDamaged, decode_summary, encode_summary, recorder_of, summary_of
from dfc.jobs.recording.recorder import Recorder
from dfc.jobs.records import JobRecord
from dfc.limits import JOB_SUMMARY_BYTES_MAX
from dfc.smallfile import NEW_SUFFIX, make_directories, read_small_file, write_small_file

_log: Final = logging.getLogger("dfc.proxy.jobs")
FOLDER: Final = "job-records"
SAVE_S: Final = 15.0  # what a proxy that is killed may lose
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


class Recordings:
    """The recorders of jobs by their ids. What is `_blocking` is for threads."""

    def __init__(self, directory: str, filesystem: FileSystem | None = None) -> None:
        self._directory = f"{os.path.abspath(directory)}/{FOLDER}"
        self._filesystem = filesystem or FileSystem()
        self._live: dict[str, Recorder] = {}
        self._writing = threading.Lock()

    def of(self, record: JobRecord) -> Recorder:
        """The recorder of a job under way. One that has ended gets one that nobody sees."""
        if record.finished_us is not None:
            return Recorder()
        return self._live.setdefault(record.id, Recorder())

    def live(self, job_id: str) -> Recorder | None:
        """The recorder of a job that is under way, or has just ended; else what is known may be in a file."""
        return self._live.get(job_id)

    def resume(self, record: JobRecord, found: Recorder | None, why: str) -> None:
        """Go on with a job from before; `found` is what was read of it."""
        recorder = self._live[record.id] = found or Recorder()
        if record.started_us is None and found is None:  # it waited: there was nothing
            return
        if found is None:
            why += "; what was before is not known"
        elif not found.is_closed:
            why += f"; of the last {SAVE_S:.0f} s before, not everything is known"
        recorder.is_complete = recorder.is_complete and recorder.is_closed
        recorder.is_closed = False
        recorder.say("info", why)

    def drop(self, job_id: str) -> None:
        """Forget a recorder; its file stays."""
        self._live.pop(job_id, None)

    def changed(self) -> list[tuple[str, JobSummary]]:
        """What is to be saved now of all jobs under way."""
        found = []
        for job_id, recorder in self._live.items():
            if recorder.is_changed:
                recorder.is_changed = False
                found.append((job_id, summary_of(recorder)))
        return found

    def closed(self, job_id: str = "") -> list[tuple[str, JobSummary]]:
        """What is to be saved at the end, of this job or of all; what never ran has nothing."""
        found = []
        for each, recorder in self._live.items():
            if job_id in ("", each) and recorder.lines:
                recorder.is_closed = True
                found.append((each, summary_of(recorder)))
        return found

    # --- files

    def read_blocking(self, job_id: str) -> Recorder | None:
        """Read what was saved of a job; None if there is nothing, or it is damaged."""
        try:
            data = read_small_file(self._path(job_id), "It can be removed.", JOB_SUMMARY_BYTES_MAX)
            return None if data is None else recorder_of(decode_summary(data))
        except (OperatorError, SummaryDamaged, ValueError) as error:
            _log.warning("what was recorded of job %s cannot be read: %s", job_id, error)
            return None

    def save_blocking(self, summaries: Iterable[tuple[str, JobSummary]]) -> None:
        """Write files. What cannot be written is lost; the log of the proxy says so."""
        with self._writing:  # one after the other, also at a stop: what is told last is newest
            for job_id, summary in summaries:
                try:
                    make_directories(self._directory, self._filesystem)
                    # Labels may be confidential, so only the owner can read the file.
                    write_small_file(self._path(job_id), encode_summary(summary), self._filesystem, 0o600)
                except Exception as error:  # an OSError, or figures without an encoding: the job must not suffer
                    _log.warning("what was recorded of job %s cannot be written: %s", job_id, error)

    def prune_blocking(self, known: Callable[[list[str]], set[str]]) -> None:
        """Remove the files of jobs that are not listed any more; `known` says which ones are."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("cannot look for what was recorded of old jobs: %s", error)
            return
        by_id = {name: name.removesuffix(NEW_SUFFIX) for name in names}
        left = known(sorted(set(by_id.values())))
        for name, job_id in by_id.items():
            if job_id not in left:
                try:
                    self._filesystem.unlink(f"{self._directory}/{name}")
                except OSError as error:
                    _log.warning("cannot remove what was recorded of job %s: %s", job_id, error)

    def _path(self, job_id: str) -> str:
        if not _ID.fullmatch(job_id):
            raise ValueError("not the id of a job")
        return f"{self._directory}/{job_id}"
