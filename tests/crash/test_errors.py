"""EIO, ENOSPC and short writes at every call, once and again and again: an answer, nothing left, nothing lost."""

from __future__ import annotations

import errno
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from crash.conftest import SCENARIOS
from faulty_filesystem import FaultyFileSystem, commit_and_fail, fail_with, write_short
from harness import own_files

from dfc.errors import DfcError, NoSpace, StorageFailed
from dfc.storage.catalog.commit import OutcomeUnknown


def files(path: Path) -> set[str]:
    """Every file of an object, without the indexes, which may be missing."""
    return {str(file) for file in (path / "objects").rglob("*") if file.is_file() and file.suffix != ".idx"}


def needed(lab: Any, disk: Any) -> set[str]:
    return {disk.blob_path(row) for row in disk.list(lab.bucket, limit=100, ranks="all")}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_one_failing_call_fails_the_request_and_leaves_nothing(lab: Any, scenario: str, number: int) -> None:
    gc.collect()  # what other tests have left in this process
    threads, opened = set(threading.enumerate()), own_files()
    for call in range(len(lab.calls_in(scenario))):
        path = lab.fresh()
        filesystem = FaultyFileSystem(fail_with(number))
        disk = lab.open(path, filesystem)
        before = own_files()
        filesystem.arm(call)
        acknowledged, error = attempt(lab, scenario, disk)
        assert own_files() == before, f"a descriptor is left after call {call} ({filesystem.names[call]})"
        if error is not None:
            assert isinstance(error, NoSpace if number == errno.ENOSPC else StorageFailed), filesystem.names[call]
        for name, content in lab.before.items():
            if not acknowledged and name in lab.scenarios[scenario].changes:
                assert lab.read(disk, name) in (content, None if scenario == "remove bucket" else content)
        assert (disk.state == "failed") == isinstance(error, OutcomeUnknown)
        if filesystem.names[call] not in ("unlink", "commit"):
            assert files(path) == needed(lab, disk), f"a file is left after call {call} ({filesystem.names[call]})"
        disk.close()
        allowed = lab.scenarios[scenario].allowed(acknowledged)
        lab.expect(path, allowed)
    assert set(threading.enumerate()) <= threads
    assert own_files() <= opened  # what other tests have left in this process may end meanwhile


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_request_works_after_one_that_failed(lab: Any, scenario: str) -> None:
    for call in range(len(lab.calls_in(scenario))):
        path = lab.fresh()
        filesystem = FaultyFileSystem(fail_with(errno.ENOSPC))
        disk = lab.open(path, filesystem)
        filesystem.arm(call)
        acknowledged, _ = attempt(lab, scenario, disk)
        if not acknowledged:
            lab.scenarios[scenario].act(disk)
        disk.close()
        lab.expect(path, lab.scenarios[scenario].allowed(True))


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_short_writes_are_finished(lab: Any, scenario: str, every: int) -> None:
    path = lab.fresh()
    filesystem = FaultyFileSystem(write_short)
    disk = lab.open(path, filesystem)
    filesystem.arm(0, every=every)
    lab.scenarios[scenario].act(disk)
    disk.close()
    lab.expect(path, lab.scenarios[scenario].allowed(True))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("every", [2, 3, 5, 7])
def test_a_disk_that_keeps_failing_loses_nothing(lab: Any, every: int, number: int) -> None:
    path = lab.fresh()
    filesystem = FaultyFileSystem(fail_with(number))
    disk = lab.open(path, filesystem, error_budget=1000)
    filesystem.arm(every - 1, every=every)
    allowed = {name: {content} for name, content in lab.before.items()}
    for scenario in SCENARIOS[:-1] * 3:
        acknowledged, error = attempt(lab, scenario, disk)
        for name, content in lab.scenarios[scenario].changes.items():
            if acknowledged:
                allowed[name] = {content}
            elif isinstance(error, OutcomeUnknown):
                allowed[name].add(content)
    filesystem.arm()
    disk.close()
    lab.expect(path, allowed)


def test_the_error_budget_ends_writing_but_not_reading(lab: Any) -> None:
    path = lab.fresh()
    filesystem = FaultyFileSystem(fail_with(errno.EIO))
    disk = lab.open(path, filesystem, error_budget=3)
    filesystem.arm(0, every=1)
    for _ in range(3):
        assert disk.state == "up"
        with pytest.raises(StorageFailed):
            disk.put_small(lab.bucket, "new-small", b"x")
    filesystem.arm()
    assert disk.state == "failed"
    with pytest.raises(StorageFailed, match="accepts no writes"):
        disk.put_small(lab.bucket, "new-small", b"x")
    with pytest.raises(StorageFailed, match="accepts no writes"):
        disk.begin_put(lab.bucket, "new-small", size=1)
    with pytest.raises(StorageFailed, match="accepts no writes"):
        disk.delete(lab.bucket, "old-small")
    assert lab.read(disk, "old-small") == lab.before["old-small"]
    disk.close()
    lab.expect(path, {name: [content] for name, content in lab.before.items()})


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_commit_that_failed_after_all_had_reached_the_medium_loses_no_blob(lab: Any, scenario: str) -> None:
    path = lab.fresh()
    filesystem = FaultyFileSystem(commit_and_fail)
    disk = lab.open(path, filesystem)
    filesystem.arm(0, every=1)
    acknowledged, error = attempt(lab, scenario, disk)
    assert not acknowledged
    assert isinstance(error, OutcomeUnknown)
    assert disk.state == "failed"
    disk.close()
    found = lab.expect(path, lab.scenarios[scenario].allowed(False))
    # A relaxed copy takes two commits: with the first, which was to note that it may be lost, nothing is stored yet.
    expected = lab.before if scenario == "adopt relaxed" else lab.scenarios[scenario].changes
    assert all(found[name] == content for name, content in expected.items())


def attempt(lab: Any, scenario: str, disk: Any) -> tuple[bool, DfcError | None]:
    """Whether the scenario was acknowledged, and the error if it was not. Any other exception fails the test."""
    try:
        lab.scenarios[scenario].act(disk)
        return True, None
    except DfcError as error:
        return False, error
