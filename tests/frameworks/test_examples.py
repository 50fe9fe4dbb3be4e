"""The programs of examples/ and the guide that leads through them, as somebody runs them who has just installed DFC.

The longest are left to `make test-long`: what they show of the loaders, the other tests of frameworks show in less time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import Cluster

from dfc.client import Client

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
ADDRESS = "http://localhost:8080"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py") if "argparse" in path.read_text())
HAS_DALI = importlib.util.find_spec("nvidia") is not None and importlib.util.find_spec("nvidia.dali") is not None
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "no_proxy": "*",
}
TINY = ["--model", "tiny", "--classes", "4", "--size", "32", "--batch-size", "8", "--learning-rate", "0.5"]
RANKS = 2


@pytest.fixture(scope="module")
def toy(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a bucket with five uneven training shards, and some for validation."""
    folder = tmp_path_factory.mktemp("toy")
    url = f"{cluster.url}/pictures"
    said = python("toy_dataset.py", folder, url, "--pictures", "200", "--samples-per-shard", "38", "--val-percent", "20")
    assert said.splitlines()[0].endswith("200 pictures of 4 classes")
    return url


def python(program: str, *arguments: str | Path) -> str:
    """What a program of the examples prints on standard output."""
    return output([sys.executable, str(EXAMPLES / program), *map(str, arguments)])


def output(command: list[str], **options: object) -> str:
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=280, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def torchrun(program: str, *arguments: str) -> list[str]:
    """The command for two ranks."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [*run, str(EXAMPLES / program), *arguments]


def shards_of(toy: str, part: str) -> dict[str, int]:
    url, _, bucket = toy.rpartition("/")
    with Client(url) as client:
        return {info.name: info.samples or 0 for info in client.list(bucket, prefix=part)}


def keys_of(toy: str, part: str) -> set[str]:
    url, _, bucket = toy.rpartition("/")
    with Client(url) as client:
        return {info.key for info in client.keys(bucket, f"{part}-*.tar", fields="key")}


def test_every_program_says_what_it_does() -> None:
    programs = [name for name in PROGRAMS if HAS_DALI or "dali" not in name]
    assert len(programs) >= 5
    started = {
        name: subprocess.Popen([sys.executable, EXAMPLES / name, "--help"], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
        for name in programs
    }
    said = {name: process.communicate(timeout=250)[0] for name, process in started.items()}
    for name, process in started.items():
        assert process.returncode == 0, name
        assert said[name].startswith("usage: "), name
        assert "http://localhost:8080" in said[name], name
    for name in PROGRAMS:
        assert name in (EXAMPLES / "README.md").read_text()


def test_the_upload_keeps_every_picture_on_its_side(toy: str) -> None:
    train, val = shards_of(toy, "train"), shards_of(toy, "val")
    assert list(train.values()) == [38, 38, 38, 38, sum(train.values()) - 4 * 38]
    assert sum(train.values()) + sum(val.values()) == 200
    keys = keys_of(toy, "train"), keys_of(toy, "val")
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == 200
    assert {key.partition("/")[0] for key in keys[1]} == {"circle", "cross", "ring", "square"}


# --- PyTorch


def trained(path: Path) -> list[dict[tuple[int, int], list[str]]]:
    """For each rank: keys by (epoch, step), as --write-keys has them."""
    found = []
    for rank in range(RANKS):
        lines = [line.split() for line in Path(f"{path}.{rank}").read_text().splitlines()]
        found.append({(int(epoch), int(step)): keys for epoch, step, *keys in lines})
    return found


def weights(path: Path) -> dict[str, torch.Tensor]:
    return torch.load(path, weights_only=True)["model"]


def read_lines(fifo: Path, count: int) -> list[str]:
    """At least so many lines; while nobody reads, whoever opens it to write more waits."""
    lines: list[str] = []
    while len(lines) < count:
        with fifo.open() as file:
            lines += file.read().splitlines()
    return lines


def kill_a_rank(agent: subprocess.Popen[bytes]) -> None:
    """SIGKILL for one rank; torchrun notices, and ends the other and itself."""
    ranks = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    victim = next(int(pid) for pid in ranks if b"pytorch_imagenet" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(victim, signal.SIGKILL)
    assert agent.wait(150) != 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_ranks_train_on_everything_and_a_killed_run_ends_with_the_same_weights(toy: str, tmp_path: Path) -> None:
    """2 ranks × 2 workers over 5 uneven shards for 2 epochs, once undisturbed, once killed at a random step."""
    arguments = ["--train", f"{toy}/train-*.tar", "--val", f"{toy}/val-*.tar", *TINY, "--workers", "2", "--epochs", "2"]

    undisturbed = torchrun("pytorch_imagenet.py", *arguments, "--checkpoint", "whole.pt", "--write-keys", "whole")
    said = output(undisturbed, cwd=tmp_path)
    whole = trained(tmp_path / "whole")
    keys = keys_of(toy, "train")
    steps = -(-len(keys) // (8 * RANKS))
    for epoch in range(2):
        seen = [key for rank in whole for (number, _), batch in rank.items() if number == epoch for key in batch]
        assert set(seen) == keys
        assert len(seen) == steps * 8 * RANKS  # fewer than 8 × 2 of them twice
    assert [list(rank) for rank in whole] == [[(epoch, step) for epoch in range(2) for step in range(steps)]] * RANKS
    assert [whole[0][epoch, 0] for epoch in range(2)] != [whole[0][0, 0]] * 2
    assert len(re.findall(rf"of {len(keys_of(toy, 'val'))} samples right", said)) == 2

    after = random.randrange(3, 2 * steps - 1)
    begin = [*arguments, "--checkpoint", "killed.pt", "--checkpoint-every", "2", "--write-keys"]
    os.mkfifo(tmp_path / "begun.0")
    with subprocess.Popen(torchrun("pytorch_imagenet.py", *begin, "begun"), cwd=tmp_path, env=ENVIRONMENT) as agent:
        lines = read_lines(tmp_path / "begun.0", after)
        kill_a_rank(agent)
    assert len(lines) < 2 * steps
    said = output(torchrun("pytorch_imagenet.py", *begin, "rest"), cwd=tmp_path)
    place = re.search(r"going on at epoch (\d) step (\d+)", said)
    assert place, said
    first = int(place[1]), int(place[2])
    for rank, rest in enumerate(trained(tmp_path / "rest")):
        assert rest == {at: batch for at, batch in whole[rank].items() if at >= first}
    assert weights(tmp_path / "killed.pt").keys() == weights(tmp_path / "whole.pt").keys()
    for name, value in weights(tmp_path / "killed.pt").items():
        torch.testing.assert_close(value, weights(tmp_path / "whole.pt")[name], rtol=0, atol=0)


# --- others


@pytest.mark.long
def test_tensorflow_trains_and_goes_on_with_the_next_epoch(toy: str, tmp_path: Path) -> None:
    shards = ["--train", f"{toy}/train-*.tar", "--val", f"{toy}/val-*.tar", "--checkpoint", str(tmp_path / "run.keras")]
    said = python("tensorflow_imagenet.py", *shards, *TINY, "--epochs", "1")
    assert re.search(r"^(\d+)/\1 - .*accuracy: .*val_accuracy: ", said, re.MULTILINE)
    said = python("tensorflow_imagenet.py", *shards, *TINY, "--epochs", "2")
    assert "Epoch 2/2" in said
    assert "Epoch 1/2" not in said


def test_webdataset_trains_on_as_many_samples_as_there_are(toy: str) -> None:
    server, _, bucket = toy.rpartition("/")
    said = python("webdataset_imagenet.py", "--server", server, "--bucket", bucket, *TINY, "--workers", "1", "--epochs", "1")
    count = sum(shards_of(toy, "train").values())
    assert re.fullmatch(rf"epoch 0: {count // 8 * 8} samples a rank, loss \d\.\d+\n", said)


@pytest.mark.skipif(not HAS_DALI, reason="DALI is not installed: pip install nvidia-dali-cuda120")
def test_dali_decodes_what_the_loader_reads(toy: str) -> None:
    said = python("dali_imagenet.py", "--train", f"{toy}/train-*.tar", *TINY, "--epochs", "2")
    count = sum(shards_of(toy, "train").values())
    assert re.findall(r"epoch (\d): (\d+) samples", said) == [(str(epoch), str(-(-count // 8) * 8)) for epoch in range(2)]


# --- the guide


@pytest.mark.long
@pytest.mark.timeout(900)
def test_commands_of_the_guide(cluster: Cluster, tmp_path: Path) -> None:
    """Every `sh` and `python` block of docs/training.md does what it says, in order."""
    text = (ROOT / "docs" / "training.md").read_text()
    blocks = re.findall(r"^```(sh|python)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    environment = {**ENVIRONMENT, "DFC_URL": cluster.url}
    printed = []
    for language, block in blocks:
        script = block.replace(ADDRESS, cluster.url)
        command = ["bash", "-euo", "pipefail", "-c", script] if language == "sh" else [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        printed.append(done.stdout)
    made, looked, reports, first, batches, more = printed[:6]
    assert "train-000000.tar" in made
    assert re.search(r"\S+/\d{6} \(\d+, \d+, 3\) [0-3]\n", looked)
    assert json.loads(reports[reports.index("{") :])["problems"]["broken"] == []
    assert re.search(r"^epoch 0 step 20/\d+ loss ", first, re.MULTILINE)
    assert first.count("samples right") == 2
    assert re.fullmatch(r"(\d+ torch\.Size\(\[16\]\)\n){2}", batches)
    assert "going on at epoch 2 step 0" in more
    assert more.count("samples right") == 1
