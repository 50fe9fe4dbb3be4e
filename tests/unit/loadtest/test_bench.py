"""The program around the rows: choice of rows, table, JSON, exit codes, missing tools, cleaning up."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest
from rich.console import Console

from loadtest import tarstream
from loadtest.bench import __main__ as bench_main
from loadtest.bench import dropping
from loadtest.bench.context import Bench
from loadtest.bench.row import Row
from loadtest.processes import ProcessFailed


def make_row(name: str, reached: float, required: float) -> Row:
    return Row(name, f"what {name} is", f"{reached} measured", "beside", reached, required, "x", note=f"note of {name}")


@pytest.fixture
def rows(monkeypatch):
    """Three rows without servers: one passes, one misses, one breaks."""

    def broken(bench: Bench) -> list[Row]:
        raise OSError("no server")

    table = {"good": lambda bench: [make_row("good", 2, 1)], "bad": lambda bench: [make_row("bad", 1, 2)], "broken": broken}
    monkeypatch.setattr(bench_main, "ROWS", table)
    monkeypatch.setattr(bench_main, "ensure_programs", lambda console, rows: True)
    monkeypatch.setattr(bench_main, "interruptible", lambda: None)
    return table


def test_rows_are_printed_and_written(rows, tmp_path, capsys):
    report = tmp_path / "bench.json"
    assert bench_main.main(["--rows", "good,bad", "--json", str(report), "--dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "pass" in printed
    assert "MISS" in printed
    assert "note of bad" in printed
    document = json.loads(report.read_text())
    assert [row["passed"] for row in document["rows"]] == [True, False]
    assert document["environment"]["pairs"] == 7
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_a_busy_machine_is_mentioned(rows, monkeypatch, capsys):
    monkeypatch.setattr(bench_main.os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    bench_main.main(["--rows", "good"])
    assert "load 99.0" in capsys.readouterr().out
    monkeypatch.setattr(bench_main.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    bench_main.main(["--rows", "good"])
    assert "busy" not in capsys.readouterr().out


def test_a_miss_is_a_failure_when_strict(rows, tmp_path):
    assert bench_main.main(["--rows", "good", "--strict"]) == 0
    assert bench_main.main(["--rows", "bad", "--strict"]) == 1


def test_a_row_that_breaks_does_not_stop_the_others(rows, capsys):
    assert bench_main.main(["--rows", "broken,good"]) == 1
    printed = capsys.readouterr().out
    assert "no server" in printed
    assert "pass" in printed


def test_an_unknown_row_is_a_wrong_command_line(rows):
    with pytest.raises(SystemExit) as stopped:
        bench_main.main(["--rows", "nosuch"])
    assert stopped.value.code == 2


def test_missing_programs_are_named(monkeypatch, capsys):
    monkeypatch.setattr(bench_main, "find_program", lambda name: None if name in ("wrk", "nginx") else f"/usr/bin/{name}")
    monkeypatch.setattr(bench_main.os, "geteuid", lambda: 1000)
    assert bench_main.main(["--rows", "get1"]) == 2
    assert "apt-get install nginx wrk" in capsys.readouterr().out


def test_every_row_of_the_table_has_a_name():
    names = "get1 get8 relay put-relaxed put-fsync small-get redirect small-put member list index placement memory"
    names += " copies-put copies-small-put copies-list"
    assert list(bench_main.CORE) == names.split()
    jobs = "start reshuffle-large reshuffle-disk reshuffle-small batch keys convert"
    assert list(bench_main.JOBS) == jobs.split()
    inputs = "samples-10k samples-100k jpeg tgz epoch-start resume input-memory"
    assert list(bench_main.INPUTS) == inputs.split()
    assert list(bench_main.MOVES) == ["move", "move-small", "move-plan", "compare-digests", "buckets"]
    pages = "page-load page-grid page-ends thumbnail page-beside page-drop-file page-drop-folder search"
    assert list(bench_main.PAGES) == pages.split()
    groups = (bench_main.CORE, bench_main.JOBS, bench_main.INPUTS, bench_main.MOVES, bench_main.PAGES)
    assert [name for group in groups for name in group] == [*bench_main.ROWS]


@pytest.mark.parametrize("group", ["jobs", "inputs", "moves", "pages"])
def test_rows_are_chosen_by_group(group):
    assert bench_main.parse_arguments([f"--{group}"]).rows == list(getattr(bench_main, group.upper()))
    assert bench_main.parse_arguments(["--jobs", "--inputs"]).rows == [*bench_main.JOBS, *bench_main.INPUTS]


def test_the_rows_of_loaders_need_no_server_of_others(monkeypatch):
    monkeypatch.setattr(bench_main, "find_program", lambda name: "/usr/bin/curl" if name == "curl" else None)
    monkeypatch.setattr(bench_main.os, "geteuid", lambda: 1000)
    quiet = Console(quiet=True)
    assert bench_main.ensure_programs(quiet, ["jpeg", "tgz"])
    assert not bench_main.ensure_programs(quiet, ["jpeg", "get1"])


def test_rows_with_a_browser_say_what_they_need(monkeypatch):
    monkeypatch.setattr(dropping, "find_program", lambda name: None)
    with pytest.raises(ProcessFailed, match="apt-get install chromium"), dropping.browser_page("http://127.0.0.1:1/"):
        pass
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(ProcessFailed, match="pip install playwright"), dropping.browser_page("http://127.0.0.1:1/"):
        pass


def test_a_bench_leaves_nothing(tmp_path):
    bench = Bench(Console(quiet=True), pairs=1, parent=tmp_path)
    assert bench.directory.parent == tmp_path
    memory = bench.memory
    assert memory.is_dir()
    bench.close()
    assert list(tmp_path.iterdir()) == []
    assert not memory.exists()


def test_the_shards_of_the_job_rows_are_tars_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(b"".join(tarstream.sample_tar(5, 1000, first=7, alphabet=64)))
    assert path.stat().st_size == tarstream.sample_tar_size(5, 1000)
    with tarfile.open(path) as archive:
        sizes = {member.name: member.size for member in archive}
    assert sizes == {f"s/{n:08d}.{ext}": size for n in range(7, 12) for ext, size in (("jpg", 1000), ("cls", 3))}
