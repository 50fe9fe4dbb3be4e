"""The scenarios against a handoff replica: they pass on a sound server, and notice each kind of fault."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import wait_for, was_interrupted

from loadtest.__main__ import DEFAULTS, main
from loadtest.addresses import AddressError, parse_base_url
from loadtest.scenarios import SCENARIOS

ROOT = Path(__file__).parents[3]
SMALL = ["--count", "20", "--seconds", "60", "--connections", "2", "--size", "200000", "--objects", "2"]
SMALL += ["--small-objects", "20"]


def run(stand_in, scenario: str, tmp_path: Path, *more: str) -> tuple[int, dict]:
    report = tmp_path / "report.json"
    code = main(["--url", stand_in.url, "--scenario", scenario, "--json", str(report), *SMALL, *more])
    return code, json.loads(report.read_text())


def test_every_scenario_counts_and_cleans_up(stand_in, tmp_path):
    code, report = run(stand_in, ",".join(SCENARIOS), tmp_path)
    assert code == 0
    assert [entry["scenario"] for entry in report["scenarios"]] == list(SCENARIOS)
    for entry in report["scenarios"]:
        assert entry["operations"] == 20
        assert entry["errors"] == {}
        assert entry["bytes"] > 0
        latencies = [entry["latency_s"][which] for which in ("p50", "p95", "p99", "max")]
        assert latencies[0] > 0
        assert latencies == sorted(latencies)
    assert stand_in.objects == {}
    assert stand_in.buckets == set()


@pytest.mark.parametrize("scenario", ["get", "range", "sample", "small"])
def test_a_wrong_byte_is_noticed(stand_in, tmp_path, scenario):
    stand_in.damage = f"/{scenario}/"
    code, report = run(stand_in, scenario, tmp_path)
    assert code == 1
    assert report["scenarios"][0]["errors"]["wrong_bytes"] >= 1
    # The ranges start at random: only those at the object's start meet the damaged byte elsewhere.
    assert report["scenarios"][0]["operations"] == 0 or scenario == "range"


def test_what_a_put_left_behind_is_read_back(stand_in, tmp_path):
    stand_in.damage = "/put/"
    code, report = run(stand_in, "put", tmp_path)
    assert code == 1
    assert report["scenarios"][0]["errors"] == {"verify: wrong_bytes": 1}


def test_refused_puts_are_counted_by_status_and_end_the_run(stand_in, tmp_path):
    stand_in.refuse_puts = True
    code, report = run(stand_in, "put", tmp_path, "--count", "1000")
    assert code == 1
    assert report["scenarios"][0]["errors"]["status_507"] == 40
    assert report["scenarios"][0]["errors"]["gave_up"] == 2


def test_a_missing_name_in_a_listing_is_noticed(stand_in, tmp_path):
    stand_in.forgotten = "list/000007"
    code, report = run(stand_in, "list", tmp_path)
    assert code == 1
    assert set(report["scenarios"][0]["errors"]) == {"wrong_names"}
    stand_in.forgotten = "list/000019"  # the last one
    assert set(run(stand_in, "list", tmp_path)[1]["scenarios"][0]["errors"]) == {"short_listing"}


def test_only_loopback_unless_allowed():
    assert parse_base_url("http://127.0.0.1:8080/", allow_remote=False).port == 8080
    assert parse_base_url("localhost:81", allow_remote=False).port == 81
    assert parse_base_url("http://[::1]:8080", allow_remote=False).url == "http://[::1]:8080"
    with pytest.raises(AddressError, match="allow-remote"):
        parse_base_url("http://192.0.2.1:8080", allow_remote=False)
    assert parse_base_url("http://192.0.2.1", allow_remote=True).port == 80


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1", "http://", "http://127.0.0.1:99999", "http://127.0.0.1/?x=1", "http://u@127.0.0.1"]
)
def test_other_urls_are_refused(url):
    with pytest.raises(AddressError):
        parse_base_url(url, allow_remote=True)


@pytest.mark.parametrize(
    "wrong",
    [["--scenario", "nosuch"], ["--connections", "0"], ["--seconds", "0"], ["--count", "0"], ["--url", "http://192.0.2.1"]],
)
def test_a_wrong_command_line_is_exit_code_2(wrong):
    with pytest.raises(SystemExit) as stopped:
        main(["--url", "http://127.0.0.1:1", *wrong])
    assert stopped.value.code == 2


def test_an_unreachable_server_is_exit_code_2(capsys):
    assert main(["--url", "http://127.0.0.1:1", "--scenario", "get"]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_an_interrupted_run_removes_its_bucket(stand_in):
    argv = [sys.executable, "-m", "loadtest", "--url", stand_in.url, "--scenario", "small", "--seconds", "60"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as client:
        wait_for(lambda: len(stand_in.objects) >= DEFAULTS.small_objects, "its objects", 30)
        client.send_signal(signal.SIGINT)
        _, errors = client.communicate(timeout=30)
    assert was_interrupted(client.returncode), client.returncode
    assert "interrupted" in errors
    assert stand_in.buckets == set()
    assert stand_in.objects == {}


def test_it_runs_as_a_module(stand_in):
    argv = [sys.executable, "-m", "loadtest", "--url", stand_in.url, "--scenario", "small", "--json", "-", *SMALL]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scenarios"][0]["operations"] == 20
    assert "req/s" in done.stderr
