"""The filesystem `dfc://` on a real cluster: fsspec's own suite, members of shards, forks, what goes wrong."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests import abstract
from harness import Cluster, running
from job_shards import tar_of

from dfc.checksum import checksum_of
from dfc.inputs.filesystem import DfcFileSystem
from dfc.inputs.fsreads import DfcFile
from dfc.inputs.writers import TarWriter

TOKEN = "a-secret-of-the-tests"
COUNT = iter(range(1_000_000))


@pytest.fixture(scope="module")
def served(start_cluster: Callable[..., Cluster]) -> Iterator[Cluster]:
    cluster = start_cluster(targets=2, disks=1, environment={"DFC_TOKEN": TOKEN, "DFC_TOKEN_FOR_READS": "true"})
    yield cluster
    cluster.stop()


@pytest.fixture
def fs(served: Cluster) -> DfcFileSystem:
    return DfcFileSystem(url=served.url, token=TOKEN)


@pytest.fixture
def bucket(fs: DfcFileSystem) -> str:
    """A bucket of the test's own."""
    name = f"fs-{next(COUNT)}"
    fs.client.create_bucket(name, durability="relaxed")
    return name


class DfcFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, served: Cluster) -> DfcFileSystem:
        return DfcFileSystem(url=served.url, token=TOKEN)

    @pytest.fixture
    def fs_path(self, fs: DfcFileSystem) -> str:
        fs.client.create_bucket("suite", durability="relaxed")
        return f"suite/{next(COUNT)}"


class TestCopy(abstract.AbstractCopyTests, DfcFixtures):
    test_copy_glob_edge_cases = None  # 28 cases of how fsspec itself expands globs; all pass, and take 5 s


class TestGet(abstract.AbstractGetTests, DfcFixtures):
    test_get_glob_edge_cases = None


class TestPut(abstract.AbstractPutTests, DfcFixtures):
    test_put_glob_edge_cases = None


class TestOpen(abstract.AbstractOpenTests, DfcFixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, DfcFixtures):
    pass


# What is there.


def test_folders_are_prefixes(fs: DfcFileSystem, bucket: str) -> None:
    for name in ("a", "d/x", "d/e/y", "d/e/z", "d.txt"):
        fs.pipe(f"dfc://{bucket}/{name}", name.encode())
    assert bucket in fs.ls("", detail=False)
    assert fs.info("dfc://")["type"] == "directory"
    assert fs.ls(f"dfc://{bucket}/", detail=False) == [f"{bucket}/{name}" for name in ("a", "d", "d.txt")]
    assert [info["type"] for info in fs.ls(f"{bucket}/d")] == ["directory", "file"]
    assert fs.ls(f"{bucket}/a", detail=False) == [f"{bucket}/a"]
    assert fs.find(bucket) == [f"{bucket}/{name}" for name in ("a", "d.txt", "d/e/y", "d/e/z", "d/x")]
    assert fs.find(f"{bucket}/a") == [f"{bucket}/a"]
    assert fs.find(f"{bucket}/nothing") == []
    assert fs.glob(f"dfc://{bucket}/d/*/[yz]") == [f"{bucket}/d/e/y", f"{bucket}/d/e/z"]
    assert fs.glob(f"{bucket}/**/x") == [f"{bucket}/d/x"]
    walked = {root: (sorted(folders), sorted(files)) for root, folders, files in fs.walk(bucket)}
    assert walked == {
        bucket: (["d"], ["a", "d.txt"]),
        f"{bucket}/d": (["e"], ["x"]),
        f"{bucket}/d/e": ([], ["y", "z"]),
    }
    assert fs.du(bucket) == sum(map(len, ("a", "d/x", "d/e/y", "d/e/z", "d.txt")))
    info = fs.info(f"{bucket}/a")
    assert (info["size"], info["type"], info["ETag"]) == (1, "file", checksum_of(b"a"))
    assert fs.ls(f"{bucket}/a") == [info]
    assert fs.modified(f"{bucket}/a") == info["mtime"]
    assert fs.checksum(f"{bucket}/a") == int(checksum_of(b"a"), 16)
    fs.rm([f"{bucket}/d", f"{bucket}/a"], recursive=True)
    assert fs.find(bucket) == [f"{bucket}/d.txt"]


def test_what_is_not_there(fs: DfcFileSystem, bucket: str) -> None:
    for path in (f"{bucket}/no", "no-such-bucket", "no-such-bucket/o", f"{bucket}/no.tar//m"):
        assert not fs.exists(path)
        assert not fs.isdir(path)
        for use in (fs.info, fs.ls, fs.cat_file, fs.open, fs.rm):
            with pytest.raises(FileNotFoundError):
                use(path)
    assert not fs.exists(f"{bucket}/../x")
    with pytest.raises(OSError, match="segments"):
        fs.open(f"{bucket}/../x", "wb")
    for use in (fs.open, fs.rm):
        fs.pipe(f"{bucket}/d/x", b"1")
        with pytest.raises(IsADirectoryError):
            use(f"{bucket}/d")


def test_a_cluster_that_is_down_is_no_empty_one(served: Cluster) -> None:
    absent = DfcFileSystem(url="http://127.0.0.1:9")
    for use in (absent.exists, absent.isfile, absent.ls, absent.find):
        with pytest.raises(ConnectionRefusedError):
            use("b/o")


def test_who_has_no_token_reads_and_writes_nothing(fs: DfcFileSystem, bucket: str) -> None:
    other = DfcFileSystem(url=fs.url)
    fs.pipe(f"{bucket}/a", b"1")
    with pytest.raises(PermissionError):
        other.pipe(f"{bucket}/a", b"2")
    with pytest.raises(PermissionError):
        other.cat(f"{bucket}/a")
    assert fs.cat(f"{bucket}/a") == b"1"


def test_buckets_come_and_go(fs: DfcFileSystem) -> None:
    fs.mkdir("made")
    with pytest.raises(FileExistsError):
        fs.mkdir("made")
    fs.makedirs("made", exist_ok=True)
    fs.pipe("made/a", b"1")
    with pytest.raises(OSError, match="made") as caught:
        fs.rmdir("made")
    assert caught.value.errno == errno.ENOTEMPTY
    fs.mkdir("made/empty/folder")
    assert fs.ls("made/empty/folder") == []
    assert fs.isdir("made/empty/folder")
    fs.rm("dfc://made", recursive=True)
    assert not fs.exists("made")
    assert not fs.exists("made/empty/folder")


# Reading.


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec leaves the file of its mmap cache open
def test_parts_of_files(fs: DfcFileSystem, bucket: str) -> None:
    body = os.urandom(300_000)
    path = f"{bucket}/o"
    fs.pipe(path, body)
    for start, end in (
        (None, None),
        (5, 10),
        (-7, None),
        (None, -7),
        (299_999, 400_000),
        (10, 5),
        (300_000, None),
        (400_000, None),
    ):
        assert fs.cat_file(path, start, end) == body[start:end], (start, end)
    starts = list(range(0, 300_000, 10_000))
    assert fs.cat_ranges([path] * 30, starts, [start + 100 for start in starts]) == [body[at : at + 100] for at in starts]
    found = fs.cat_ranges([path, f"{bucket}/no"], 0, 3)
    assert found[0] == body[:3]
    assert isinstance(found[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([path, f"{bucket}/no"], 0, 3, on_error="raise")
    with fs.open(path, block_size=10_000) as file:
        for at in (100, 250_000, 5, 299_990):
            file.seek(at)
            assert file.read(20) == body[at : at + 20]
    for cache in ("readahead", "bytes", "blockcache", "background", "all", "first", "none", "mmap"):
        with fs.open(path, block_size=70_000, cache_type=cache) as file:
            assert file.read(5) + file.read() == body
    fs.pipe(f"{bucket}/empty", b"")
    with fs.open(f"{bucket}/empty") as file:
        assert file.read() == b""
    assert fs.cat([path, f"{bucket}/empty"]) == {path: body, f"{bucket}/empty": b""}


def test_a_file_that_is_replaced_while_it_is_read(fs: DfcFileSystem, bucket: str) -> None:
    path = f"{bucket}/o"
    fs.pipe(path, b"a" * 100_000)
    with fs.open(path, block_size=10_000) as file:
        assert file.read(5) == b"aaaaa"
        fs.pipe(path, b"b" * 100_000)
        file.seek(50_000)
        with pytest.raises(OSError, match="replaced") as caught:
            file.read(5)
    assert caught.value.errno == errno.ESTALE


@pytest.mark.parametrize("ending", ["tar", "tgz"])
def test_a_shard_that_is_replaced_while_a_member_is_read(fs: DfcFileSystem, bucket: str, ending: str, tmp_path: Path) -> None:
    path = f"{bucket}/s.{ending}"
    for body in (b"a" * 1000, b"b" * 5000):
        with TarWriter(tmp_path / f"s.{ending}") as writer:
            writer.write({"__key__": "m", "bin": body})
        if body[:1] == b"b":
            file = fs.open(f"{path}//m.bin")
        fs.put(str(tmp_path / f"s.{ending}"), path)
    with file:
        if ending == "tgz":  # such a member was read whole when it was opened
            assert file.read() == b"a" * 1000
        with pytest.raises(OSError, match="replaced") as caught:
            file._fetch_range(0, 1000)
    assert caught.value.errno == errno.ESTALE
    assert fs.cat(f"{path}//m.bin") == b"b" * 5000


@pytest.mark.parametrize("ending", ["tar", "tgz", "tar.zst"])
def test_members_of_shards(fs: DfcFileSystem, bucket: str, ending: str) -> None:
    local = Path(f"/dev/shm/dfc-test-{os.getpid()}.{ending}")
    body = os.urandom(50_000)
    with TarWriter(local) as writer:
        for key in ("train/a", "train/deep/b", "c"):
            writer.write({"__key__": key, "bin": body, "cls": 7, "none": b""})
    path = f"{bucket}/s.{ending}"
    fs.put(str(local), path)
    local.unlink()
    assert fs.info(path)["type"] == "file"
    top = f"dfc://{path}//"
    assert fs.ls(top, detail=False) == [f"{path}//{name}" for name in ("c.bin", "c.cls", "c.none", "train")]
    assert fs.ls(f"{top}train/", detail=False) == [f"{path}//train/{name}" for name in ("a.bin", "a.cls", "a.none", "deep")]
    assert len(fs.find(top)) == 9
    assert fs.glob(f"{top}train/*.bin") == [f"{path}//train/a.bin"]
    assert fs.glob(f"{top}**/*.bin") == [f"{path}//{name}.bin" for name in ("c", "train/a", "train/deep/b")]
    for name, size in (("c.bin", 50_000), ("train/deep/b.cls", 1), ("c.none", 0)):
        info = fs.info(top + name)
        assert (info["name"], info["size"], info["type"]) == (f"{path}//{name}", size, "file")
        assert {**info, "compressed": True} == {**fs.ls(top + name)[0], "compressed": True}
    assert fs.isdir(top)
    assert fs.isdir(f"{top}train/deep")
    assert not fs.exists(f"{top}train/no")
    assert fs.cat(f"{top}train/a.bin") == body
    assert fs.cat_file(f"{top}c.bin", 10, 20) == body[10:20]
    with fs.open(f"{top}c.bin", block_size=1000) as file:
        file.seek(40_000)
        assert file.read(5) == body[40_000:40_005]
        file.seek(-5, 2)
        assert file.read() == body[-5:]
    assert fs.cat(f"{top}c.none") == b""
    fs.cp(f"{top}c.bin", f"{bucket}/copied.bin")
    assert fs.cat(f"{bucket}/copied.bin") == body
    for use in (lambda: fs.open(f"{top}new", "wb"), lambda: fs.rm(f"{top}c.bin"), lambda: fs.pipe(f"{top}new", b"1")):
        with pytest.raises(OSError, match="read only") as caught:
            use()
        assert caught.value.errno == errno.EROFS


def test_members_are_fetched_whole_and_not_beyond_their_folder(
    fs: DfcFileSystem, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("a/one.bin", "two.bin", "../above.bin", "a/../../beside.bin")
    path = f"{bucket}/s.tar"
    fs.pipe(path, tar_of([(name, (name[-9:].encode() * 20_000)[:100_000]) for name in names]))
    (tmp_path / "to").mkdir()
    fs.get(f"{path}//a/one.bin", f"{tmp_path}/to/one.bin")
    fs.get(f"{path}//two.bin", f"{tmp_path}/to/sub/two.bin")
    assert (tmp_path / "to" / "one.bin").read_bytes() == (b"a/one.bin" * 20_000)[:100_000]
    assert (tmp_path / "to" / "sub" / "two.bin").stat().st_size == 100_000
    with pytest.raises(ValueError, match="outside"):  # fsspec looks after that
        fs.get(f"{path}//", f"{tmp_path}/to/all/", recursive=True)
    assert not [*tmp_path.glob("*.bin"), *tmp_path.glob("to/above*"), *tmp_path.glob("to/beside*")]

    def fail(*_: object) -> bytes:
        raise ConnectionError("no more")

    (tmp_path / "to" / "one.bin").write_bytes(b"before")
    monkeypatch.setattr(DfcFile, "_fetch_range", fail)
    with pytest.raises(ConnectionError):
        fs.get(f"{path}//a/one.bin", f"{tmp_path}/to/one.bin")
    assert (tmp_path / "to" / "one.bin").read_bytes() == b"before"


def test_members_of_what_is_no_shard(fs: DfcFileSystem, bucket: str) -> None:
    fs.pipe(f"{bucket}/text", b"not a tar")
    assert not fs.exists(f"{bucket}/text//m")
    for use in (fs.ls, fs.info, fs.cat_file):
        with pytest.raises(NotADirectoryError):
            use(f"{bucket}/text//m")


# Writing.


def test_an_exception_stores_nothing(fs: DfcFileSystem, bucket: str, caplog: pytest.LogCaptureFixture) -> None:
    path = f"{bucket}/o"
    fs.pipe(path, b"old")

    def fail(mode: str) -> None:
        with fs.open(path, mode) as file:
            file.write(b"new" if "b" in mode else "new")
            raise RuntimeError

    for mode in ("wb", "ab", "w", "a"):
        with pytest.raises(RuntimeError):
            fail(mode)
        assert fs.cat(path) == b"old"
    file = fs.open(path, "wb")
    file.write(b"forgotten")
    with caplog.at_level(logging.WARNING, "dfc.inputs"):
        del file
    assert "was never closed" in caplog.text
    assert fs.cat(path) == b"old"


def test_appending(fs: DfcFileSystem, bucket: str) -> None:
    path = f"{bucket}/log"
    for line in (b"one\n", b"two\n"):
        with fs.open(path, "ab") as file:
            file.write(line)
    assert fs.cat(path) == b"one\ntwo\n"
    file = fs.open(path, "ab")
    file.write(b"late\n")
    fs.pipe(path, b"other\n")
    with pytest.raises(OSError, match=path) as caught:
        file.close()
    assert caught.value.errno == errno.ESTALE
    assert fs.cat(path) == b"other\n"
    file = fs.open(f"{path}-new", "ab")
    file.write(b"mine\n")
    fs.pipe(f"{path}-new", b"theirs\n")
    with pytest.raises(FileExistsError):
        file.close()


def test_exclusive_files_are_decided_when_they_are_stored(fs: DfcFileSystem, bucket: str) -> None:
    path = f"{bucket}/o"
    file = fs.open(path, "xb")
    file.write(b"mine")
    fs.pipe(path, b"theirs")
    with pytest.raises(FileExistsError):
        file.close()
    assert fs.cat(path) == b"theirs"


def test_transactions(fs: DfcFileSystem, bucket: str) -> None:
    def write(error: bool) -> None:
        with fs.transaction:
            for name in ("a", "b"):
                with fs.open(f"{bucket}/{name}", "wb") as file:
                    file.write(name.encode())
            assert fs.find(bucket) == []
            if error:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        write(True)
    assert fs.find(bucket) == []
    write(False)
    assert fs.find(bucket) == [f"{bucket}/a", f"{bucket}/b"]


def test_text_and_compression(fs: DfcFileSystem, bucket: str) -> None:
    with fs.open(f"{bucket}/t.gz", "wt", compression="infer", encoding="utf-8") as file:
        file.write("grüß\n" * 1000)
    assert fs.size(f"{bucket}/t.gz") < 200
    with fs.open(f"{bucket}/t.gz", "rt", compression="infer", encoding="utf-8") as file:
        assert file.read() == "grüß\n" * 1000


def test_an_exception_under_layers_stores_nothing(fs: DfcFileSystem, bucket: str) -> None:
    path = f"{bucket}/o.gz"

    def fail(opened: Any) -> None:
        with opened as file:
            file.write("new")
            raise RuntimeError

    for opened in (
        fs.open(path, "wt", compression="gzip"),
        fsspec.open(f"dfc://{path}", "wt", compression="infer", url=fs.url, token=TOKEN),
    ):
        with pytest.raises(RuntimeError):
            fail(opened)
    assert not fs.exists(path)
    try:
        raise RuntimeError
    except RuntimeError:
        # Opened while an exception is handled, and closed then: that is no failure of the writing.
        with fs.open(path, "wt") as file:
            file.write("new")
    assert fs.cat(path) == b"new"


# Processes and threads.


def _read_all(fs: DfcFileSystem, paths: list[str], results: Any) -> None:
    results.put([checksum_of(fs.cat(path)) for path in paths])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_have_connections_of_their_own(fs: DfcFileSystem, bucket: str, method: str) -> None:
    """Children read while a thread of the parent reads on the connections that they inherit, or must not."""
    paths = [f"{bucket}/{at}" for at in range(8)]
    fs.pipe({path: os.urandom(1_000_000) for path in paths})
    wanted = [fs.info(path)["ETag"] for path in paths]
    stop, problems = threading.Event(), []

    def read_on() -> None:
        while not stop.is_set():
            problems.extend(path for path, etag in zip(paths, wanted, strict=True) if checksum_of(fs.cat(path)) != etag)

    with running([threading.Thread(target=read_on)], stop):
        context: Any = multiprocessing.get_context(method)
        results = context.Queue()
        children = [context.Process(target=_read_all, args=(fs, paths, results)) for _ in range(3 if method == "fork" else 1)]
        for child in children:
            child.start()
        assert [results.get(timeout=60) for _ in children] == [wanted] * len(children)
        for child in children:
            child.join(30)
            assert child.exitcode == 0
    assert problems == []


def test_filesystems_and_files_can_be_pickled(fs: DfcFileSystem, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.pipe(f"{bucket}/o", b"0123456789")
    assert pickle.loads(pickle.dumps(fs)) == fs  # noqa: S301
    with fs.open(f"{bucket}/o") as file:
        file.seek(3)
        with pickle.loads(pickle.dumps(file)) as copy:  # noqa: S301
            assert copy.read(2) == b"34"
    monkeypatch.setenv("DFC_URL", fs.url)
    monkeypatch.setenv("DFC_TOKEN", TOKEN)
    with fsspec.open(f"dfc://{bucket}/o") as file:
        assert file.read() == b"0123456789"
    assert fsspec.filesystem("dfc", target=fs.url, token=TOKEN).cat(f"{bucket}/o") == b"0123456789"
