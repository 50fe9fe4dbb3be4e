"""What `make test` runs and what it leaves to `make test-full`: the rules, and the lists that they go by."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import harness
import pytest
import tiers
import timings
from tiers import LONGER_S, SHORTER_S, SMOKE, Case, Graph, Rules, durations, smoke_names
from timings import is_there

ROOT = Path(__file__).resolve().parents[2]
NONE = Rules(full=(), smoke=(), offset=0, modules=(), files=())


def case(path: str = "tests/unit/x/test_a.py", name: str = "test_b", **more: Any) -> Case:
    return Case(path, name, **more)


# --- the rules


def test_what_is_short_runs_and_what_is_long_does_not() -> None:
    rules = NONE._replace(full={"test_a.py::test_long[1]"})
    assert not rules.left_out(case(name="test_long[2]"))
    assert rules.left_out(case(name="test_long[1]")) == "longer than a second"
    assert rules.left_out(case("tests/http/test_a.py", "test_long[1]")), "a test may be moved to another folder"
    endless = case(name=f"test_b[{'x' * 10_000}]")
    assert len(endless.key) < 200
    assert endless.key != case(name=f"test_b[{'x' * 9_999}]").key


@pytest.mark.parametrize("named", ["test_a.py::test_b[1]", "test_a.py::test_b"])
def test_what_the_smoke_list_names_runs_whatever_it_takes(named: str) -> None:
    rules = NONE._replace(full={"test_a.py::test_b[1]"}, smoke={named})
    for folder in ("unit", "cluster", "browser", "frameworks"):
        assert not rules.left_out(case(f"tests/{folder}/test_a.py", "test_b[1]"))
        assert rules.may_run(f"tests/{folder}/test_a.py")
    assert NONE.left_out(case("tests/cluster/test_a.py")) == "not in tests/smoke.txt"
    assert not rules.may_run("tests/cluster/test_b.py")
    assert rules.may_run("tests/unit/test_b.py")


def test_a_file_without_long_tests_is_not_read_for_them() -> None:
    rules = NONE._replace(full={"test_a.py::test_long"})
    assert rules.may_leave_out("tests/unit/x/test_a.py")
    assert not rules.may_leave_out("tests/unit/x/test_b.py")
    for folder in ("crash", "simulation", "mutants", "cluster", "browser", "frameworks"):
        assert rules.may_leave_out(f"tests/{folder}/test_b.py")


def test_marks_are_used_only_where_a_file_is_read_for_them() -> None:
    for folder in tiers.BY_TIME:
        for path in (ROOT / "tests" / folder).rglob("test_*.py"):
            if path != Path(__file__).resolve():
                assert not re.search(r"mark\.(thinned|about)|@in_parts", path.read_text()), path


def test_each_part_is_drawn_by_one_offset_and_neighbours_draw_different_ones() -> None:
    cases = [case("tests/crash/test_a.py", f"test_b[{number}]", number=number, thinned=4) for number in range(24)]
    drawn = [{each.number for each in cases if not NONE._replace(offset=at).left_out(each)} for at in range(4)]
    assert set().union(*drawn) == set(range(24))
    assert sum(map(len, drawn)) == 24, "no case is in two"
    for each in drawn:
        parts = [number % 4 for number in sorted(each)]
        assert len(parts) == 6, "one of each scenario"
        assert set(parts) == set(range(4))
    long = NONE._replace(full={each.key for each in cases})
    assert any(not long.left_out(each) for each in cases), "what is thinned is not also left out for its length"


def test_mutants_run_if_their_module_differs() -> None:
    mutant = case("tests/mutants/test_mutants.py", about=("dfc.tar.header",))
    rules = NONE._replace(full={mutant.key})
    assert rules.left_out(mutant)
    assert not rules._replace(modules={"dfc.tar.header"}).left_out(mutant)


def test_frameworks_run_if_what_they_import_differs() -> None:
    path = "tests/frameworks/test_a.py"
    assert NONE.left_out(case(path))
    assert not NONE.may_run(path)
    chosen = NONE._replace(files={path}, full={case(path).key})
    assert not chosen.left_out(case(path))
    assert chosen.may_run(path)


@pytest.mark.parametrize(
    ("before", "seconds", "after"), [(False, 1.1, False), (False, 1.3, True), (True, 0.9, True), (True, 0.7, False)]
)
def test_a_test_near_the_bound_stays_where_it_is(before: bool, seconds: float, after: bool) -> None:
    assert tiers.is_full(before, seconds) is after


# --- what differs


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "somebody")
    for number in range(2):
        (tmp_path / f"{number}.py").write_text("")
        git(tmp_path, "init", "-q", "-b", "main")
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", str(number))
    return tmp_path


def git(directory: Path, *arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=directory, text=True).strip()


def test_the_base_is_the_commit_before_or_where_this_left_the_main_of_the_remote(repository: Path) -> None:
    assert tiers.default_base() == git(repository, "rev-parse", "HEAD~1")
    git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert tiers.default_base() == git(repository, "rev-parse", "HEAD~1"), "what was pushed differs by its last commit"
    git(repository, "commit", "-q", "--allow-empty", "-m", "of a branch")
    git(repository, "commit", "-q", "--allow-empty", "-m", "of a branch")
    assert tiers.default_base() == git(repository, "rev-parse", "HEAD~2")


def test_without_a_commit_before_there_is_no_base(repository: Path) -> None:
    git(repository, "checkout", "-q", "--orphan", "new")
    git(repository, "commit", "-q", "-m", "alone")
    with pytest.raises(LookupError):
        tiers.default_base()


def test_what_is_not_committed_differs_too(repository: Path) -> None:
    (repository / "0.py").write_text("changed")
    (repository / "2.py").write_text("new")
    assert tiers.differing("HEAD~1") == ["0.py", "1.py", "2.py"]
    with pytest.raises(LookupError):
        tiers.differing("nothing")


# --- what stands on what


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(started=False)


def test_a_difference_chooses_the_tests_that_stand_on_it(graph: Graph) -> None:
    chosen = graph.tests(["dfc/inputs/torch/dataset.py"])
    assert "tests/frameworks/test_inputs_torch.py" in chosen
    assert not [path for path in chosen if path.startswith("tests/unit/storage/")]
    assert graph.tests(["tests/unit/test_names.py"]) == {"tests/unit/test_names.py"}
    assert "tests/crash/test_kill.py" in graph.tests(["tests/faulty_filesystem.py"])
    assert "tests/crash/test_kill.py" in graph.tests(["tests/crash/conftest.py"])
    assert graph.tests(["README.md", "dfc/no_more.py"]) == set()


def test_of_the_lowest_layer_only_what_imports_it_itself_is_chosen(graph: Graph) -> None:
    chosen = graph.tests(["dfc/names.py"])
    assert "tests/unit/test_names.py" in chosen
    assert len(chosen) < 40


def test_what_a_cluster_runs_chooses_the_tests_that_start_one(graph: Graph) -> None:
    changed = ["dfc/proxy/jobs/queue.py"]
    assert "tests/cluster/test_curl.py" not in graph.tests(changed)
    assert "tests/cluster/test_curl.py" in Graph(started=True).tests(changed)


def test_libraries_that_a_tier_does_not_install_are_found_although_they_are_here(tmp_path: Path) -> None:
    """Else a file would be in neither tier: in one they are not installed, in the other they are."""
    source = tmp_path / "test_a.py"
    source.write_text('from lazy import Lazy\njson = Lazy("pandas")\ndef test_b():\n    import duckdb.sql, torch\n')
    assert tiers.full_packages_of(source) == ["duckdb", "pandas"]
    source.write_text("def test(datasets):\n    start('examples/tensorflow_imagenet.py')\n")
    assert tiers.full_packages_of(source) == ["tensorflow"], "what it starts"


# --- the lists


def test_the_smoke_list_names_tests_that_exist() -> None:
    names = smoke_names(SMOKE.read_text())
    assert len(names) == len(set(names))
    assert [name for name in names if not is_there(name)] == []
    assert not is_there("test_curl.py::test_no_such_test")
    assert not is_there("test_nothing.py::test_a_download_resumes")


def test_each_part_of_the_smoke_tier_is_named() -> None:
    """A cluster with curl, the README, the demo, a job and a kill; a page; an epoch."""
    files = {name.partition("::")[0] for name in smoke_names(SMOKE.read_text())}
    wanted = {f"test_{name}.py" for name in ("curl", "readme", "demo", "jobs", "copies", "search", "inputs_torch")}
    assert wanted <= files


def test_the_lists_of_durations_are_by_the_rule() -> None:
    lists = durations()
    assert set(lists) == {"full", "short"}
    assert not set(lists["full"]) & set(lists["short"])
    assert min(lists["full"].values()) > SHORTER_S
    assert max(lists["short"].values()) <= LONGER_S


def test_few_names_in_the_durations_are_of_tests_that_are_gone() -> None:
    names = {**durations()["full"], **durations()["short"]}
    gone = [name for name in names if not is_there(name)]
    assert len(gone) < 0.05 * len(names), f"run `make durations`: {gone}"


def _record(began: float, **seconds: float) -> dict[str, Any]:
    return {"began": began, "seconds": {f"tests/unit/{name}.py::test_a[x/y.py::z]": value for name, value in seconds.items()}}


def test_lists_are_renewed_by_the_median_of_the_last_three_runs() -> None:
    runs = [_record(4, test_x=1.1, test_y=5.0), _record(3, test_x=9.0), _record(2, test_x=2.0), _record(1, test_x=0.1)]
    key = "test_x.py::test_a[x/y.py::z]"
    made = timings.renewed({"full": {}, "short": {"test_z.py::test_b": 0.5}}, runs)
    assert made["full"] == {key: 2.0, "test_y.py::test_a[x/y.py::z]": 5.0}
    assert made["short"] == {"test_z.py::test_b": 0.5}, "what ran in none keeps its place"
    twice = _record(1) | {"seconds": {"tests/a/test_x.py::test_b": 0.5, "tests/b/test_x.py::test_b": 3.0}}
    assert timings.renewed({"full": {}, "short": {}}, [twice])["full"] == {"test_x.py::test_b": 3.0}


# --- pytest

FAILING = """
import pytest, time

@pytest.fixture(scope="module")
def slow():
    time.sleep(0.3)

def test_passes(slow):
    pass

def test_fails():
    assert False

def test_is_racy(tmp_path):
    import pathlib
    mark = pathlib.Path(__file__).with_name("mark")
    if not mark.exists():
        mark.touch()
        assert False
"""


def test_a_run_is_written_down_and_what_failed_is_run_again(tmp_path: Path) -> None:
    file, record = tmp_path / "test_of_mine.py", tmp_path / "kept" / "record.json"
    file.write_text(FAILING)
    options = ["-q", "-p", "no:cacheprovider", "-p", "timings", f"--timings={record}"]
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
    assert subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True).returncode == 1
    found = json.loads(record.read_text())
    assert found["seconds"]["test_of_mine.py::test_passes"] < 0.3, "what a fixture of the module takes is no test's own"
    assert list(found["failed"]) == ["test_of_mine.py::test_fails", "test_of_mine.py::test_is_racy"]
    again = [sys.executable, "-m", "timings", "again", str(record)]
    done = subprocess.run(again, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "it fails alone, too: test_of_mine.py::test_fails (call: assert False)",
        "RACY: it passes alone: test_of_mine.py::test_is_racy (call: assert False)",
    ]


def test_clusters_start_one_after_the_other_but_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(harness.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(harness, "STARTING_MAX", 2)
    monkeypatch.setattr(harness, "START_TIMEOUT_S", 0.2)
    entered, done = threading.Event(), threading.Event()

    def third() -> None:
        with harness.starting():
            entered.set()
        done.set()

    with harness.starting():
        with harness.starting():
            threading.Thread(target=third, daemon=True).start()
            assert not entered.wait(0.1)
        assert done.wait(5), "a turn was given back"
        with harness.starting(), harness.starting():
            pass  # after a while, without a turn
