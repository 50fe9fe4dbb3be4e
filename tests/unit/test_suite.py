"""What the suite itself stands on: the packages that it wants, the long runs of the night, and how they are started."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from lazy import Lazy
from tiers import libraries_of

from loadtest.processes import find_program

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
RUNNER = (ROOT / "deploy/run-tests").read_text()
NIGHTLY = ROOT / ".github/workflows/nightly.yml"
LARGE = {
    "torch", "tensorflow", "keras", "webdataset", "pandas", "duckdb", "datasets", "dfc.inputs.torch", "dfc.inputs.tensorflow",
}  # fmt: skip
LINE = "nosuch-package  no-such-command  # for nothing\n"


def _packages() -> list[tuple[str, str]]:
    lines = [line for line in (ROOT / "deploy/test-packages").read_text().splitlines() if not line.startswith("#")]
    found = []
    for line in lines:
        match = re.fullmatch(r"([a-z0-9.+-]+) +([A-Za-z0-9._-]+) +# \S.*", line)
        assert match, f"not a line of 'package  command  # what for': {line!r}"
        found.append((match[1], match[2]))
    return found


@pytest.mark.parametrize(("package", "command"), _packages())
def test_what_tests_want_is_here(package: str, command: str) -> None:
    assert find_program(command), f"`make test-packages` installs {package}"


def _machine(tmp_path: Path, *, root: bool, apt: str = "") -> dict[str, str]:
    """The environment of a machine with this user and this apt-get."""
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "id").write_text(f"#!/bin/sh\necho {0 if root else 1000}\n")
    (commands / "apt-get").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n{apt}\n')
    for command in commands.iterdir():
        command.chmod(0o755)
    return {"PATH": f"{commands}:/usr/bin:/bin", "POLICY_RC_D": f"{tmp_path}/policy", "TMPDIR": str(tmp_path)}


def _install(tmp_path: Path, text: str, environment: dict[str, str]) -> tuple[int, str]:
    (tmp_path / "list").write_text(text)
    command = ["sh", ROOT / "deploy/install-test-packages", tmp_path / "list"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode, done.stdout


def test_nothing_is_done_where_all_is_there(tmp_path: Path) -> None:
    assert _install(tmp_path, "# a remark\n\ncoreutils  cat  # to read\n", _machine(tmp_path, root=True)) == (0, "")
    assert not (tmp_path / "calls").exists()


def test_who_is_not_root_is_told_the_line_to_run(tmp_path: Path) -> None:
    status, said = _install(tmp_path, LINE + "coreutils  cat\n", _machine(tmp_path, root=False))
    assert status == 1
    assert said.splitlines()[0].endswith("the tests need these missing commands: no-such-command. On Debian and Ubuntu, run:")
    assert said.splitlines()[1:] == ["    sudo apt-get install -y --no-install-recommends nosuch-package"]
    assert not (tmp_path / "calls").exists()


def test_root_installs_what_is_missing_and_starts_no_service(tmp_path: Path) -> None:
    command = tmp_path / "bin/no-such-command"
    bring = f'[ "$2" = update ] && exit 0; sh {tmp_path}/policy; [ $? = 101 ] && cp "$0" {command}'
    assert _install(tmp_path, LINE, _machine(tmp_path, root=True, apt=bring))[0] == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["-q update", "-q install -y --no-install-recommends nosuch-package"]
    assert not (tmp_path / "policy").exists(), "services of this machine may start again"


@pytest.mark.parametrize(
    ("apt", "message"),
    [("exit 100", "could not install"), ("echo fine", "but these commands are still missing: no-such-command")],
)
def test_an_installation_that_fails_is_an_error(tmp_path: Path, apt: str, message: str) -> None:
    (tmp_path / "policy").write_text("of the owner")
    status, said = _install(tmp_path, LINE, _machine(tmp_path, root=True, apt=apt))
    assert status == 1
    assert message in said
    assert (tmp_path / "policy").read_text() == "of the owner"


@pytest.mark.parametrize("line", ["nginx-light", "nginx-light nginx and more"])
def test_a_line_that_says_too_little_or_too_much_is_an_error(tmp_path: Path, line: str) -> None:
    status, said = _install(tmp_path, line + "\n", _machine(tmp_path, root=True))
    assert status == 1
    assert "not 'package command'" in said


def _targets(name: str) -> list[str]:
    """What a target of the Makefile needs first, and then its commands."""
    match = re.search(rf"^{re.escape(name)}:(.*)\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)
    assert match, f"the Makefile has no target {name!r}"
    return [*match[1].split(), *match[2].strip().split("\n")]


@pytest.mark.parametrize("name", ["test", "test-long"])
def test_packages_are_seen_to_before_any_test(name: str) -> None:
    first, *_, last = _targets(name)
    assert first == "test-packages"
    assert " -m pytest " in (RUNNER if name == "test" else last)
    assert name != "test" or "deploy/run-tests" in last


def _steps() -> list[dict[str, Any]]:
    workflow = yaml.safe_load(NIGHTLY.read_text())
    assert workflow[True]["schedule"], "YAML reads `on` as a truth value"
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_the_workflow_of_the_night_makes_targets_that_exist() -> None:
    made = []
    for step in _steps():
        assert ("uses" in step) != ("run" in step), step
        for line in step.get("run", "").splitlines():
            words = shlex.split(line)
            made += [word for word in words[words.index("make") + 1 :] if "=" not in word]
    assert {"test-long", "test-cluster"} <= set(made)
    for name in made:
        assert _targets(name)


def test_long_runs_are_left_out_by_default_and_run_at_night() -> None:
    assert " -m long " in _targets("test-long")[-1]
    assert " -m " not in RUNNER.replace(" -m pytest", "").replace(" -m timings", "")


def test_real_clusters_fail_for_a_while_every_night() -> None:
    first, command = _targets("test-cluster")
    assert first == "torch"
    assert " -m failures $(or $(ROW),all) " in command


def test_large_libraries_stay_out_of_the_processes_that_fork() -> None:
    """WebDataset brings PyTorch with it."""
    frameworks = {path.name: libraries_of(path) for path in (ROOT / "tests/frameworks").glob("test_*.py")}
    assert any(LARGE & found for found in frameworks.values())
    assert "tensorflow" in frameworks["test_tfrecord.py"], "by Lazy"
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "frameworks" not in path.parts:
            large = {name for name in libraries_of(path) if LARGE & {name, name.partition(".")[0]}}
            assert not large, f"{path} belongs to tests/frameworks"


def test_a_lazy_module_is_not_imported_by_who_looks_for_tests() -> None:
    """pytest asks each thing in a module for `__test__`, `__wrapped__` and others."""
    lazy = Lazy("no.such.module")
    assert not hasattr(lazy, "__test__")
    assert not hasattr(lazy, "_mock_name")
    with pytest.raises(ModuleNotFoundError):
        _ = lazy.data


FAKE = """#!/bin/sh
echo "$@" >>{calls}
case "$*" in *--ignore*) exit {first} ;; *"-m pytest"*) exit {second} ;; esac
"""


def _run_tests(tmp_path: Path, *arguments: str, first: int = 0, second: int = 0, **environment: str) -> tuple[int, list[str]]:
    """The status of deploy/run-tests, and what it has started, when the two runs end with these statuses."""
    python = tmp_path / "python"
    python.write_text(FAKE.format(calls=tmp_path / "calls", first=first, second=second))
    python.chmod(0o755)
    known = {name: value for name, value in os.environ.items() if name not in ("BASE", "OFFSET")}
    command = ["sh", ROOT / "deploy/run-tests", python, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env={**known, "TMPDIR": str(tmp_path), **environment})
    return done.returncode, (tmp_path / "calls").read_text().splitlines()


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 0), (0, 3)])
def test_a_failure_of_either_run_is_one_of_the_whole(tmp_path: Path, first: int, second: int) -> None:
    """And what has failed is run again, which changes nothing."""
    status, (most, frameworks, *again) = _run_tests(tmp_path, "default", first=first, second=second)
    assert status == max(first, second)
    assert most.endswith(" --ignore=tests/frameworks tests")
    assert frameworks.endswith(" tests/frameworks")
    assert [line.startswith("-m timings again ") for line in again] == [True] * (status != 0)
    left = list(tmp_path.glob("dfc-tests-*/lock"))
    assert len(left) == (status != 0)  # what it wrote is kept until the next run; whoever holds the lock goes on
    for lock in left:
        subprocess.run(["env", f"TMPDIR={tmp_path}", "flock", lock, "sh", ROOT / "deploy/run-tests", tmp_path / "python", "x"])
        assert lock.exists()
    _run_tests(tmp_path, "tests")
    assert not list(tmp_path.glob("dfc-tests-*"))


@pytest.mark.parametrize(("tier", "first", "second", "status"), [("changed", 0, 5, 0), ("full", 5, 0, 5), ("default", 0, 4, 4)])
def test_only_frameworks_may_have_nothing_to_run(tmp_path: Path, tier: str, first: int, second: int, status: int) -> None:
    assert _run_tests(tmp_path, tier, first=first, second=second)[0] == status


def test_a_tier_is_told_to_both_runs_and_named_tests_to_one(tmp_path: Path) -> None:
    _, calls = _run_tests(tmp_path, "full", BASE="v1", OFFSET="7")
    assert all(" --tier=full --base=v1 --offset=7 " in call for call in calls)
    (tmp_path / "calls").unlink()
    _, calls = _run_tests(tmp_path, "tests/unit", "tests/http", OFFSET="")
    (call,) = calls
    assert call.endswith(" tests/unit tests/http")
    assert "--tier" not in call


def test_pytest_takes_a_tier_as_it_is_run(tmp_path: Path) -> None:
    """With as many processes as it finds right."""
    file = "tests/frameworks/test_inputs_torch.py"
    options = ["-n", "auto", "--collect-only", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}", "--base=HEAD"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--tier=default", file], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_epochs_of_one_rank[2-options1]" in done.stdout
