"""A store of jobs over one folder, `folder/BUCKET/NAME`, and a loop that runs a job's tasks one after the other.

Operations are tested with it as pure functions of bytes; the same jobs run through real nodes in tests/cluster.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import xxhash

from dfc.jobs.operations import find_function, operation, other_inputs, takes_any_object
from dfc.jobs.records import digest_in_order
from dfc.jobs.request import check_spec, parse_spec
from dfc.jobs.store import InputChanged
from dfc.jobs.tasks import InputShard, JobInput, OutputRecord, Task, TaskResult
from dfc.listing.specs import expand
from dfc.tar.header import TarError
from dfc.tar.index.builder import open_builder
from dfc.tar.index.format import index_kind
from dfc.tar.index.reader import ShardIndex

VERSION = "0001"


@dataclass
class Written:
    size: int
    checksum: str


class FileSource:
    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")
        self.size = os.fstat(self._file.fileno()).st_size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        if os.preadv(self._file.fileno(), [buffer], offset) != len(buffer):
            raise EOFError("the source ends before")

    def read_ranges(self, ranges: Sequence[tuple[int, int]], buffer: memoryview) -> None:
        at = 0
        for offset, size in ranges:
            self.read_into(offset, buffer[at : at + size])
            at += size
        assert at == len(buffer)

    def read_scattered(self, offsets: Any, sizes: Any, places: Any, buffer: memoryview) -> None:
        together = bytearray(sum(sizes))
        self.read_ranges(list(zip(offsets, sizes, strict=True)), memoryview(together))
        for size, place in zip(sizes, places, strict=True):
            buffer[place : place + size] = together[:size]
            del together[:size]

    def open(self) -> BinaryIO:
        return open(os.dup(self._file.fileno()), "rb") if not self._file.seek(0) else io.BytesIO()

    def file(self) -> int | None:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class FileOutput:
    sends = True

    def __init__(self, path: Path, size: int | None) -> None:
        self._path, self._announced = path, size
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, self._temporary = tempfile.mkstemp(dir=path.parent)
        self._file = os.fdopen(descriptor, "wb")
        self._hash = xxhash.xxh3_128()
        self._size = 0

    def write(self, data: Any, files: Any = None) -> None:
        view = memoryview(data)
        self._file.write(view)
        self._hash.update(view)
        self._size += view.nbytes

    def send(self, parts: Any) -> None:
        for before, file, offset, count in parts:
            self.write(before)
            data = os.pread(file, count, offset)
            assert len(data) == count
            self.write(data)

    def commit(self) -> Written:
        assert self._announced in (None, self._size), f"{self._announced} bytes were announced, {self._size} written"
        self._file.close()
        os.replace(self._temporary, self._path)
        return Written(self._size, self._hash.hexdigest())

    def abort(self) -> None:
        if not self._file.closed:
            self._file.close()
            os.unlink(self._temporary)


class FolderStore:
    """`bytes_in` and what is left in `staged` can be looked at after a job."""

    def __init__(self, folder: Path, memory_bytes: int = 64 << 20) -> None:
        self.folder = folder
        self.memory_bytes = memory_bytes
        self.staged = folder / ".staged"
        self._indexes: dict[str, ShardIndex] = {}

    def open(self, shard: InputShard) -> FileSource:
        path = self.folder / shard.bucket / shard.name
        if not path.exists() or xxhash.xxh3_128(path.read_bytes()).hexdigest() != shard.checksum:
            raise InputChanged(f"{shard.label} has changed")
        return FileSource(path)

    def index(self, shard: InputShard) -> ShardIndex:
        if shard.label not in self._indexes:
            self._indexes[shard.label] = build_index(self.folder / shard.bucket / shard.name)[0]
        return self._indexes[shard.label]

    def create(self, name: str, size: int | None = None) -> FileOutput:
        return FileOutput(self.staged / "outputs" / name, size)

    def create_temporary(self, name: str, size: int | None = None) -> FileOutput:
        return FileOutput(self.staged / "temporary" / name, size)

    def open_temporary(self, name: str) -> FileSource:
        return FileSource(self.staged / "temporary" / name)

    @contextmanager
    def scratch(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as directory:
            yield directory

    def check(self) -> None:
        pass


def build_index(path: Path) -> tuple[ShardIndex, Any]:
    """The index of an archive, and its summary."""
    content = path.read_bytes()
    with tempfile.TemporaryDirectory() as directory, open(Path(directory) / "index", "w+b") as file:
        builder = open_builder(index_kind(path.name) or "tar", file, directory)
        builder.feed(content)
        summary = builder.finish(VERSION, len(content), xxhash.xxh3_128(content).hexdigest())
        file.flush()
        return ShardIndex.open(file.fileno()), summary


def describe(folder: Path, bucket: str, name: str, *, any_object: bool = False) -> InputShard:
    """An object of the folder as a job sees it. TarError when it is no archive, unless `any_object` will do."""
    path = folder / bucket / name
    content = path.read_bytes()
    checksum = xxhash.xxh3_128(content).hexdigest()
    try:
        if index_kind(name) is None and any_object:
            raise TarError("not named like an archive", 0)
        index, summary = build_index(path)
    except TarError:
        if not any_object:
            raise
        return InputShard.unread(bucket, name, VERSION, checksum, len(content), "t1")
    return InputShard(
        bucket, name, VERSION, checksum, len(content), index.archive_size, summary.samples, summary.members,
        summary.repeated_keys, summary.dropped, index.kind, "t1",
    )  # fmt: skip


def select(folder: Path, bucket: str, shards: str | list[str], *, any_object: bool = False) -> list[InputShard]:
    """The shards that a spec names, in its order."""
    found = expand(shards)
    if not isinstance(found, list):
        root = folder / bucket
        names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
        names = [name for name in names if (any_object or index_kind(name)) and found.matches(name)]
        found = sorted(names, key=str.encode)
    return [describe(folder, bucket, name, any_object=any_object) for name in found]


@dataclass
class Done:
    """What a job has written, by name, and what its tasks said."""

    outputs: dict[str, bytes]
    digest: str
    results: dict[str, list[TaskResult]]

    @property
    def warnings(self) -> list[str]:
        return [text for results in self.results.values() for result in results for text in result.warnings]

    @property
    def samples(self) -> int:
        return sum(output.samples for results in self.results.values() for r in results for output in r.outputs)


def run_job(folder: Path, spec: Mapping[str, Any], *, memory_bytes: int = 64 << 20, twice: bool = False) -> Done:
    """Run a job to its end, in this process. `twice`: every task runs two times, as after the loss of a worker."""
    checked = parse_spec(msgspec.json.encode(spec))
    assert check_spec(checked.spec) == checked
    store = FolderStore(folder, memory_bytes)
    anything = takes_any_object(checked.spec.operation)
    inputs = tuple(select(folder, each.bucket, each.shards, any_object=anything) for each in checked.spec.inputs)
    others = other_inputs(checked.spec.operation, checked.options)
    inputs += tuple(select(folder, each.bucket, each.shards, any_object=True) for each in others)
    bucket = checked.spec.output.bucket
    prefixes = tuple(each.prefix for each in (*checked.spec.inputs, *others))
    job = JobInput(checked.options, inputs, bucket, checked.pattern, memory_bytes, lambda name: "t1", prefixes)
    results: dict[str, list[TaskResult]] = {}
    for stage in operation(checked.spec.operation).plan(job):
        name = f"{checked.spec.operation}.{stage.name}"
        done = []
        for number, draft in enumerate(stage.tasks(results)):
            task = Task("job", name, number, draft.label, draft.payload, bucket, "0a")
            task = msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task)
            for _ in range(2 if twice else 1):
                result = find_function(name)(task, store)
                result = msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=TaskResult)
            done.append(result)
        assert stage.count_after(results) in (None, len(done)), "a stage has as many tasks as it said"
        results[stage.name] = done
    records = [record for done in results.values() for result in done for record in result.outputs]
    return publish(store, bucket, records, results)


def publish(store: FolderStore, bucket: str, records: list[OutputRecord], results: dict[str, list[TaskResult]]) -> Done:
    """Move the outputs to their bucket; what is staged and not recorded, or the other way round, is a mistake."""
    staged = store.staged / "outputs"
    assert len({record.name for record in records}) == len(records), "two tasks wrote one object"
    found = {str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_file()}
    assert found == {record.name for record in records}
    outputs = {}
    for record in records:
        content = (staged / record.name).read_bytes()
        assert (len(content), xxhash.xxh3_128(content).hexdigest()) == (record.size, record.checksum)
        outputs[record.name] = content
        path = store.folder / bucket / record.name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(staged / record.name, path)
    shutil.rmtree(store.staged, ignore_errors=True)
    return Done(outputs, digest_in_order(sorted(records, key=lambda record: record.name.encode())), results)
