"""The files with what was recorded of jobs: whatever is wrong with them, jobs do not suffer."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from dfc.filesystem import FileSystem
from dfc.jobs.recording import Recorder
from dfc.jobs.records import JobRecord
from dfc.proxy.jobs.context import FOLDER, Recordings

ID = "0006500000000100aabbcc"


def record(job_id: str = ID, started_us: int | None = 1, finished_us: int | None = None) -> JobRecord:
    return JobRecord(
        id=job_id, operation="probe", state="running", label="", bucket="out", bucket_id="b", memory_bytes=1, program="1",
        created_us=1, started_us=started_us, finished_us=finished_us,
    )  # fmt: skip


@pytest.fixture
def recordings(tmp_path: Path) -> Recordings:
    return Recordings(str(tmp_path))


def saved(recordings: Recordings, *texts: str, job_id: str = ID) -> None:
    recorder = recordings.of(record(job_id))
    for text in texts:
        recorder.say("info", text)
    recordings.save_blocking(recordings.changed())


def lines(recorder: Recorder | None) -> list[str]:
    return [line.text for line in recorder.lines]


def test_what_was_saved_is_read_and_only_by_the_owner(recordings, tmp_path):
    assert recordings.read_blocking(ID) is None
    saved(recordings, "one", "two")
    assert lines(recordings.read_blocking(ID)) == ["one", "two"]
    assert recordings.changed() == []
    saved(recordings, "three")
    assert lines(recordings.read_blocking(ID)) == ["one", "two", "three"]
    assert [(each.name, each.stat().st_mode & 0o777) for each in (tmp_path / FOLDER).iterdir()] == [(ID, 0o600)]


def test_a_job_that_has_ended_gets_no_recorder_that_hides_its_file(recordings):
    saved(recordings, "one")
    recordings.drop(ID)
    recordings.of(record(finished_us=2)).say("info", "lost")
    assert recordings.live(ID) is None
    assert lines(recordings.read_blocking(ID)) == ["one"]


def test_files_of_jobs_that_are_not_listed_go(recordings, tmp_path):
    others = [f"{number:022x}" for number in range(5)]
    for job_id in (ID, *others):
        saved(recordings, "one", job_id=job_id)
    for name in (f"{others[0]}.new", f"{ID}.new", "something else"):
        (tmp_path / FOLDER / name).write_bytes(b"torn")
    (tmp_path / FOLDER / "folder").mkdir()
    asked = []
    recordings.prune_blocking(lambda ids: asked.extend(ids) or {ID, others[1]})
    assert set(asked) == {ID, *others, "something else", "folder"}
    assert sorted(os.listdir(tmp_path / FOLDER)) == sorted([ID, others[1], f"{ID}.new", "folder"])
    assert lines(recordings.read_blocking(ID)) == ["one"]


def test_without_a_folder_there_is_nothing_to_remove(recordings):
    recordings.prune_blocking(lambda ids: pytest.fail("nobody is asked"))
    assert recordings.read_blocking(ID) is None


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"nonsense", b"x" * 300_000])
def test_a_damaged_file_is_no_file(recordings, tmp_path, caplog, content):
    saved(recordings, "one")
    (tmp_path / FOLDER / ID).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert recordings.read_blocking(ID) is None
    assert ID in caplog.text


def test_a_file_that_cannot_be_read_is_no_file(recordings, tmp_path):
    (tmp_path / FOLDER / ID).mkdir(parents=True)
    assert recordings.read_blocking(ID) is None
    for job_id in ("../jobs.sqlite", "", "a/b", "x" * 200):
        assert recordings.read_blocking(job_id) is None


class FullDisk(FileSystem):
    def create(self, path: str, mode: int = 0o644) -> int:
        raise OSError(28, "No space left on device")


def test_what_cannot_be_written_is_told_to_the_log_alone(tmp_path, caplog):
    recordings = Recordings(str(tmp_path), FullDisk())
    with caplog.at_level(logging.WARNING):
        saved(recordings, "one")
    assert "No space left on device" in caplog.text
    assert recordings.read_blocking(ID) is None


def test_figures_without_an_encoding_are_no_error_of_the_job(recordings, caplog):
    recorder = recordings.of(record())
    recorder.history.add(0, (1, 2**70, 1, 1))
    with caplog.at_level(logging.WARNING):
        saved(recordings, "one")
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("how", "complete", "said"),
    [
        ("closed", True, "started again"),
        ("killed", False, "started again; of the last 15 s before, not everything is known"),
        ("lost", False, "started again; what was before is not known"),
    ],
)
def test_how_a_job_goes_on(recordings, tmp_path, how, complete, said):
    saved(recordings, "one")
    if how == "closed":
        recordings.save_blocking(recordings.closed())
    if how == "lost":
        (tmp_path / FOLDER / ID).unlink()
    later = Recordings(str(tmp_path))
    later.resume(record(), later.read_blocking(ID), "started again")
    recorder = later.of(record())
    assert recorder is later.live(ID)
    assert recorder.is_complete == complete
    assert lines(recorder)[-1] == said
    assert (lines(recorder)[:-1] == ["one"]) == (how != "lost")
    # Killed again: what is missing now, too.
    later.save_blocking(later.changed())
    last = Recordings(str(tmp_path))
    last.resume(record(), last.read_blocking(ID), "and again")
    assert last.of(record()).is_complete is False


def test_a_job_that_waited_has_nothing_to_tell(recordings):
    recordings.resume(record(started_us=None), None, "started again")
    assert recordings.of(record()).is_complete is True
    assert recordings.closed() == []
