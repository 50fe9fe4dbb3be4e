"""`make demo`: start a cluster of four targets, upload an image dataset with `tar | tarshards` and `curl -T`, read every byte
back, then run jobs over it: reshuffle, list keys, convert to Parquet and back.

It runs in a temporary directory on free ports, prints each command before it runs, stops the cluster, and leaves nothing
behind; with --keep, the cluster stays up until Ctrl-C, to be looked at in a browser. The exit code is 0 only if every member of
every shard came back unchanged.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from loadtest.addresses import parse_base_url
from loadtest.cluster import Cluster, cluster, serve_command
from loadtest.connection import Connection, HttpFailure
from loadtest.demojobs import JobsDiffer, check_job, compare, job_commands, read_members
from loadtest.images import make_dataset
from loadtest.processes import ProcessFailed, check_interrupted, interruptible, meanwhile, run, wait_for_interrupt
from loadtest.report import format_bytes
from loadtest.scenarios import expect

SAMPLES = 1000
EXTRA_SAMPLES = 100
SAMPLES_PER_SHARD = 100
TARGETS = 4
DISKS = 2
READERS = 4
PARTS = 9  # the parts of `play`
IMAGES_COUNTED = 200  # images between two progress lines
PROGRESS_S = 1.0  # seconds between two progress lines of a job


class DemoFailed(RuntimeError):
    """The demo got something back that differs from what it stored."""


@dataclass(slots=True)
class Step:
    """A line of the final table. `bytes_moved` is 0 if there is no rate to show."""

    what: str
    seconds: float
    bytes_moved: int = 0
    remark: str = ""


@dataclass(slots=True)
class Demo:
    """The state of one run: its directory, and the steps done so far."""

    console: Console
    directory: Path
    steps: list[Step] = field(default_factory=list)
    part: int = 0

    def say(self, text: str) -> None:
        check_interrupted()
        self.part += 1
        self.console.print(f"\n[bold]{self.part}/{PARTS} {text}[/bold]")

    def count(self, done: int, total: int, what: str) -> None:
        """Print the progress of a step: a new line each time, but on a terminal always the same one."""
        end = "\r" if self.console.is_terminal and done < total else "\n"
        self.console.print(f"  {done:>4} of {total} {what}", end=end, highlight=False)

    def show(self, *commands: Sequence[str]) -> None:
        """Print a command, or a pipeline of several, as you would type it."""
        line = " | ".join(" ".join(_quoted(word) for word in command) for command in commands)
        self.console.print(f"$ {line}", markup=False, highlight=False, style="cyan", soft_wrap=True)

    def command(self, argv: Sequence[str], *, url: str = "") -> str:
        """Run a command, with DFC_URL set to `url` for our own commands."""
        self.show(argv)
        return run(argv, cwd=self.directory, env={"DFC_URL": url})

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[Step]:
        step = Step(what, 0.0)
        begin = time.monotonic()
        yield step
        step.seconds = time.monotonic() - begin
        self.steps.append(step)
        self.console.print(f"  {what}: {step.seconds:.1f} s", style="dim", highlight=False)


def _quoted(word: str) -> str:
    """Quote a word for a shell; our own programs are shown without their directory."""
    name = Path(word).name if word.startswith(str(Path(sys.executable).parent)) else word
    return f"'{name}'" if any(sign in name for sign in "*?&{} ") else name


def play(demo: Demo, *, keep: bool) -> None:
    """Run the whole demo; with `keep`, wait at its end until it is interrupted. DemoFailed, ProcessFailed or HttpFailure if
    anything goes wrong."""
    demo.console.print(
        "On an idle machine this takes a quarter of a minute. Nothing is downloaded: "
        f"{SAMPLES + EXTRA_SAMPLES} images are drawn here. Everything is in {demo.directory}, which is removed at the end.",
        highlight=False,
    )
    demo.say(f"Start a cluster: one proxy, {TARGETS} targets with {DISKS} disks each")
    demo.show(serve_command(demo.directory / "cluster", TARGETS, DISKS))
    begin = time.monotonic()
    with cluster(demo.directory / "cluster", targets=TARGETS, disks=DISKS) as started:
        demo.steps.append(Step("start the cluster", time.monotonic() - begin, remark=started.url))
        demo.console.print(f"DFC is ready at {started.url}", highlight=False)
        _make_images(demo)
        _upload_shards(demo, started.url)
        _upload_one(demo, started.url)
        shards = _list_shards(demo, started.url)
        keys = _list_keys(demo, started.url)
        _read_sample(demo, started.url, keys)
        members = _read_all(demo, started, shards)
        _run_jobs(demo, started, members)
        print_steps(demo)
        demo.console.print("\n[green]Every byte came back unchanged.[/green]")
        if keep:
            demo.console.print(f"Look at it in a browser: {started.url}/ui (Ctrl-C ends the cluster and removes everything)")
            wait_for_interrupt()
    if not keep:
        demo.console.print("To look at all this in a browser, run make demo KEEP=1: the cluster then stays up until Ctrl-C.")


def _make_images(demo: Demo) -> None:
    demo.say("Make an image dataset: JPEG and PNG files, each with a class file")
    with demo.step("make images") as step:
        for first in range(0, SAMPLES, IMAGES_COUNTED):
            step.bytes_moved += make_dataset(demo.directory / "dataset", IMAGES_COUNTED, first=first)
            demo.count(first + IMAGES_COUNTED, SAMPLES + EXTRA_SAMPLES, "images")
        step.bytes_moved += make_dataset(demo.directory / "extra", EXTRA_SAMPLES, first=SAMPLES)
        demo.count(SAMPLES + EXTRA_SAMPLES, SAMPLES + EXTRA_SAMPLES, "images")
    step.remark = f"{SAMPLES + EXTRA_SAMPLES} images"


def _upload_shards(demo: Demo, url: str) -> None:
    demo.say(f"Upload it: tar makes a stream of it, tarshards cuts that into shards of {SAMPLES_PER_SHARD} samples")
    tar = ["tar", "--sort=name", "--format=ustar", "-cf", "-", "dataset"]
    script = Path(sys.executable).with_name("tarshards")
    tarshards = [str(script)] if script.exists() else [sys.executable, "-m", "dfc.cli.tarshards"]
    tarshards += ["-n", str(SAMPLES_PER_SHARD), f"{url}/demo-%06d.tar"]
    demo.show(tar, tarshards)
    with demo.step("tar | tarshards") as step:
        _pipeline(tar, tarshards, demo.directory)
    step.bytes_moved = sum(path.stat().st_size for path in (demo.directory / "dataset").rglob("*") if path.is_file())


def _pipeline(first: Sequence[str], second: Sequence[str], directory: Path) -> None:
    """Run `first | second` without a shell. ProcessFailed if either fails."""
    with subprocess.Popen(first, cwd=directory, stdout=subprocess.PIPE) as producer:
        try:
            done = subprocess.run(second, cwd=directory, stdin=producer.stdout, capture_output=True, text=True, timeout=100)
        finally:
            if producer.stdout is not None:
                producer.stdout.close()
    if done.returncode != 0 or producer.returncode != 0:
        raise ProcessFailed(f"exit codes {producer.returncode} and {done.returncode}: {done.stderr[-2000:]}")


def _upload_one(demo: Demo, url: str) -> None:
    demo.say("Upload one more shard with nothing but curl")
    demo.command(["tar", "--sort=name", "--format=ustar", "-cf", "extra.tar", "extra"])
    with demo.step("curl -T") as step:
        answer = json.loads(demo.command(["curl", "-sS", "--fail-with-body", "-T", "extra.tar", f"{url}/demo-extra.tar"]))
    step.bytes_moved = (demo.directory / "extra.tar").stat().st_size
    step.remark = f"{answer['samples']} samples, {answer['members']} members indexed"
    if answer["samples"] != EXTRA_SAMPLES or answer["size"] != step.bytes_moved or answer["warnings"]:
        raise DemoFailed(f"unexpected answer to curl -T: {answer}")


def _list_shards(demo: Demo, url: str) -> list[str]:
    demo.say("List the shards")
    names = demo.command(["curl", "-sS", "--fail", f"{url}/default/?prefix=demo-"]).split()
    demo.console.print("\n".join(names), highlight=False)
    expected = [f"demo-{number:06d}.tar" for number in range(-(-SAMPLES // SAMPLES_PER_SHARD))] + ["demo-extra.tar"]
    if names != expected:
        raise DemoFailed(f"the shards are {names}, not {expected}")
    return names


def _list_keys(demo: Demo, url: str) -> list[tuple[str, str]]:
    demo.say("List the keys of all samples, from the indexes")
    with demo.step("list keys") as step:
        text = demo.command(["curl", "-sS", "--fail", f"{url}/v1/buckets/default/samples?shards=demo-*.tar&fields=key"])
    lines = text.splitlines()
    for line in [*lines[:2], "…"]:
        demo.console.print(line, markup=False, highlight=False)
    step.remark = f"{len(lines)} keys"
    keys = [(entry["shard"], entry["key"]) for entry in map(json.loads, lines)]
    if len({key for _, key in keys}) != SAMPLES + EXTRA_SAMPLES:
        raise DemoFailed(f"{len(keys)} keys instead of {SAMPLES + EXTRA_SAMPLES}")
    return keys


def _read_sample(demo: Demo, url: str, keys: Sequence[tuple[str, str]]) -> None:
    demo.say("Read one image from a shard, by its key")
    shard, key = keys[len(keys) // 2]
    original = next(path for path in demo.directory.glob(f"{key}.*") if path.suffix != ".cls")
    extension = original.suffix[1:]
    with demo.step("read one sample") as step:
        demo.command(["curl", "-sS", "--fail", "-o", "sample", f"{url}/{shard}?sample={key}&ext={extension}"])
    step.remark = f"{key}.{extension}"
    if (demo.directory / "sample").read_bytes() != original.read_bytes():
        raise DemoFailed(f"{step.remark} came back with other bytes")


def _read_all(demo: Demo, started: Cluster, shards: Sequence[str]) -> dict[str, bytes]:
    """Read all members of all shards, and compare them with the original files."""
    demo.say(f"Stream all {len(shards)} shards back, {READERS} at a time, and compare every file")
    with demo.step("stream all shards") as step, ThreadPoolExecutor(READERS) as pool:
        data = []
        for shard in pool.map(lambda shard: _download(started.url, shard), shards):
            data.append(shard)
            demo.count(len(data), len(shards), "shards")
    step.bytes_moved = sum(len(shard) for shard in data)
    with demo.step("compare every byte") as step:
        members = read_members(data)
        expected = {
            path.relative_to(demo.directory).as_posix(): path.read_bytes()
            for part in ("dataset", "extra")
            for path in (demo.directory / part).rglob("*")
            if path.is_file()
        }
    if members != expected:
        different = [name for name in expected if members.get(name) != expected[name]]
        raise DemoFailed(
            f"{len(different)} files are missing or different, and {len(members.keys() - expected.keys())} are unexpected"
        )
    step.remark = f"{len(members)} files equal"
    return members


def _run_jobs(demo: Demo, started: Cluster, members: Mapping[str, bytes]) -> None:
    demo.say("Run jobs beside the data: reshuffle all samples, list the keys of the result, convert it to Parquet and back")
    demo.console.print(f"$ export DFC_URL={started.url}", style="cyan", highlight=False)
    samples = SAMPLES + EXTRA_SAMPLES
    shards = -(-samples // SAMPLES_PER_SHARD)
    for what, argv in job_commands(SAMPLES_PER_SHARD).items():
        with demo.step(what) as step, meanwhile(lambda ended: _show_progress(demo, started.url, ended)):
            job = demo.command(argv, url=started.url)
        step.remark = check_job(job, samples, 1 if what == "list keys" else shards)
        demo.console.print(step.remark, highlight=False)
    manifest = _download(started.url, "shuffled/keys.ndjson").decode().splitlines()
    for line in [*manifest[:2], "…"]:
        demo.console.print(line, markup=False, highlight=False)
    if len(manifest) != samples:
        raise DemoFailed(f"{len(manifest)} keys instead of {samples}")
    with demo.step("compare samples") as step:
        step.remark = f"{compare(lambda path: _download(started.url, path), members, shards)} files equal"


def _show_progress(demo: Demo, url: str, ended: threading.Event) -> None:
    """Print the progress of the latest job from time to time."""
    while not ended.wait(PROGRESS_S):
        with contextlib.suppress(HttpFailure, OSError):  # progress is only for show
            for job in json.loads(_download(url, "v1/jobs?limit=1"))["jobs"]:  # empty before the first job
                tasks = job["progress"]["tasks"]
                if job["state"] == "running" and tasks["total"]:
                    demo.count(tasks["done"], tasks["total"], "tasks")


def _download(url: str, shard: str) -> bytes:
    data = io.BytesIO()
    with contextlib.closing(Connection(parse_base_url(url, allow_remote=False))) as connection:
        expect(connection.download(f"/{shard}", data.write), 200)
    return data.getvalue()


def print_steps(demo: Demo) -> None:
    table = Table(title="Summary", title_justify="left")
    for column in ("step", "seconds", "bytes", "rate", ""):
        table.add_column(column, justify="right" if column in ("seconds", "bytes", "rate") else "left")
    for step in demo.steps:
        rate = f"{format_bytes(step.bytes_moved / step.seconds)}/s" if step.bytes_moved and step.seconds else ""
        size = format_bytes(step.bytes_moved) if step.bytes_moved else ""
        table.add_row(step.what, f"{step.seconds:.2f}", size, rate, step.remark)
    demo.console.print()
    demo.console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep the cluster up until Ctrl-C")
    keep = parser.parse_args().keep
    console = Console(width=None if sys.stdout.isatty() else 140)
    interruptible()
    missing = [name for name in ("curl", "tar") if shutil.which(name) is None]
    if missing:
        print(f"demo: please install {' and '.join(missing)} first", file=sys.stderr)
        return 2
    demo = Demo(console, Path(tempfile.mkdtemp(prefix="dfc-demo-")))
    try:
        play(demo, keep=keep)
        if not keep:
            check_interrupted()
    except (DemoFailed, JobsDiffer, ProcessFailed, HttpFailure, OSError, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(demo.directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
