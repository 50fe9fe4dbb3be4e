"""`dfc bench-input` against a real cluster: figures for every part, errors with the exit codes of all commands."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from harness import Cluster, command_line, wait_for, was_interrupted
from job_shards import tar_of
from PIL import Image

from dfc.cli.session import Exit
from dfc.client import Client
from loadtest.processes import descendants

SHARDS, SAMPLES = 4, 60
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def shard(first: int) -> bytes:
    """Samples of a small picture, a label and some bytes."""
    picture = io.BytesIO()
    Image.effect_noise((64, 48), 40).convert("RGB").save(picture, "JPEG")
    members = []
    for number in range(first, first + SAMPLES):
        fields = (("jpg", picture.getvalue()), ("cls", b"%d" % number), ("bin", os.urandom(2000)))
        members += [(f"{number:06d}.{ext}", body) for ext, body in fields]
    return tar_of(members)


@pytest.fixture(scope="module")
def bench(cluster: Cluster) -> Run:
    """Run `dfc bench-input` with the cluster as DFC_URL."""
    with Client(cluster.url) as client:
        for number in range(SHARDS):
            body = shard(number * SAMPLES)
            client.put("bench-input", f"x-{number:06d}.tar", body)
            client.put("bench-input", f"x-{number:06d}.tgz", gzip.compress(body))
        client.put("bench-input", "text.tar", b"this is no archive")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dfc.cli.main", "bench-input", *arguments, "--retries", "0", "--seconds", "0.2"]
        environment = {**os.environ, "DFC_URL": cluster.url}
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=250)

    return run


def test_every_part_is_measured(bench: Run) -> None:
    done = bench(f"bench-input/x-@{SHARDS:06d}.tgz", "--workers", "1,2", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["count"], found["compression"], found["decode"]) == (SHARDS, "gz", "rgb8")
    assert 2000 < found["sample_bytes"] < 6000
    assert [each["workers"] for each in found["workers"]] == [1, 2]
    for each in found["workers"]:
        parts = {name: each[name]["samples_per_s"] for name in ("decompressor", "parser", "decoder", "link")}
        assert min(parts.values()) > 0
        assert each["weakest"] == min(parts, key=parts.__getitem__)
        assert each["decoding_loader"]["samples_per_s"] > 0
        # Decoding costs something, and what comes from the network is never faster than memory alone by much.
        assert each["loader"]["samples_per_s"] < 3 * parts["parser"]
        assert each["reached"] == pytest.approx(each["decoding_loader"]["samples_per_s"] / parts[each["weakest"]], rel=0.05)
        assert each["link"]["bytes_per_s"] == pytest.approx(parts["link"] * found["sample_bytes"], rel=0.01)


def test_people_get_a_table_and_a_verdict(bench: Run, cluster: Cluster) -> None:
    done = bench(f"{cluster.url}/bench-input/x-*.tar", "--workers", "1", "--decode", "none")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("4 shards, not compressed, ")
    assert "the link" in done.stdout
    assert "decoding" not in lines[1]
    assert "1 process: the bottleneck is" in done.stdout
    assert done.stderr.splitlines() == ["parser, 1 process", "link, 1 process", "loader, 1 process"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("bench-input/none.tar",), Exit.NOT_FOUND, "none.tar"),
        (("bench-input/none-*.tar",), Exit.NOT_FOUND, "none-"),
        (("http://127.0.0.1:1/b/x.tar",), Exit.UNREACHABLE, "127.0.0.1:1"),
        (("bench-input/text.tar",), Exit.FAILED, "text.tar"),
        (("bench-input/x-000000.tar", "--decode", "rgb9"), Exit.USAGE, "rgb9"),
        (("bench-input/x-@000004.tar", "--workers", "100"), Exit.USAGE, "100"),
    ],
)
def test_errors_are_a_line_and_a_code(bench: Run, arguments: tuple[str, ...], code: Exit, said: str) -> None:
    done = bench(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_an_interrupted_measurement_leaves_no_process(bench: Run, cluster: Cluster) -> None:
    command = [sys.executable, "-m", "dfc.cli.main", "bench-input", "bench-input/x-@000004.tar", "-w", "3", "--seconds", "600"]
    environment = {**os.environ, "DFC_URL": cluster.url}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        children = wait_for(lambda: len(found := descendants(process.pid)) == 3 and found, "three measuring processes")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (was_interrupted(process.returncode), out) == (True, "")
    assert "Traceback" not in err
    assert not any("measureworker" in command_line(pid) for pid in children)
