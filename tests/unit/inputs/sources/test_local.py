"""Streams of files, commands, standard input and fsspec; and `gopen` over all of them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from harness import wait_for

from dfc.http.retry import Cancellation, Cancelled
from dfc.inputs.base import Counts, ShardChanged, ShardRef, ShardUnreadable
from dfc.inputs.gopen import gopen
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.streams import StreamOptions
from dfc.limits import MIB

BODY = os.urandom(2 * MIB + 77)


def read(ref: ShardRef | str, *, step: int = 300_000, **given: object) -> bytes:
    buffer = bytearray(step)
    pieces = []
    with open_stream(ref, **given) as stream:  # type: ignore[arg-type]
        while count := stream.readinto(buffer):
            pieces.append(bytes(buffer[:count]))
    assert all(len(piece) == step for piece in pieces[:-1])
    return b"".join(pieces)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a b.tar"
    path.write_bytes(BODY)
    return path


def test_files(path: Path) -> None:
    counts = Counts()
    assert read(str(path), counts=counts) == BODY
    assert counts.size == len(BODY)
    assert read(f"file://{str(path).replace(' ', '%20')}", start=1_000_000) == BODY[1_000_000:]
    assert read(f"file:{path}", start=10, end=20) == BODY[10:20]
    assert read(str(path), start=len(BODY)) == b""
    with pytest.raises(ShardUnreadable, match="from byte"):
        open_stream(str(path), start=len(BODY) + 1)
    with open_stream(str(path)) as stream:
        assert (stream.size, stream.indexed) == (len(BODY), False)
        etag = stream.etag
    assert read(str(path), etag=etag) == BODY
    path.write_bytes(BODY + b"more")
    with pytest.raises(ShardChanged):
        open_stream(str(path), etag=etag)


def test_files_that_cannot_be_read(path: Path) -> None:
    for missing in (str(path) + "x", str(path.parent)):
        with pytest.raises(ShardUnreadable) as caught:
            open_stream(missing)
        assert caught.value.url == missing
    assert read(ShardRef("/nowhere", ("/nor/here", str(path)))) == BODY
    with pytest.raises(ShardUnreadable, match=r"/nowhere.*/nor/here"):
        open_stream(ShardRef("/nowhere", ("/nor/here",)))
    with open_stream(str(path)) as stream:
        os.truncate(path, 1000)
        assert stream.readinto(bytearray(MIB)) == 1000
        with pytest.raises(ShardUnreadable, match="was truncated while"):
            stream.readinto(bytearray(MIB))


def test_commands(path: Path) -> None:
    assert read(f"pipe:cat '{path}'") == BODY
    assert read(f"pipe:cat '{path}' | cat", start=1_000_000, end=1_500_000) == BODY[1_000_000:1_500_000]


def test_commands_that_fail(path: Path) -> None:
    """The status counts, of every part of a pipeline, also after all bytes have come; and what was said on the way is told."""
    for command in (f"cat '{path}' /nowhere", f"cat '{path}' /nowhere | cat"):
        with pytest.raises(ShardUnreadable, match=r"status 1: .*/nowhere"):
            read(f"pipe:{command}")
    with pytest.raises(ShardUnreadable, match="status 3"):
        read("pipe:exit 3")


def test_commands_end_when_they_are_left(tmp_path: Path) -> None:
    begun = time.monotonic()
    stream = open_stream(f"pipe:echo $$ > '{tmp_path}/pid'; yes; sleep 60")
    assert stream.readinto(bytearray(10)) == 10
    stream.close()
    stream.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    stream = open_stream(f"pipe:echo x; touch '{tmp_path}/said'; sleep 60")

    def abort() -> None:
        wait_for((tmp_path / "said").exists, "the command to have said something")
        stream.abort()

    aborting = threading.Thread(target=abort)
    aborting.start()
    with stream:
        assert stream.readinto(bytearray(10)) == 2
        with pytest.raises(Cancelled):
            stream.readinto(bytearray(10))
    aborting.join()
    cancellation = Cancellation()
    with open_stream("pipe:sleep 60", cancellation=cancellation) as stream:
        cancellation.cancel()
        with pytest.raises(Cancelled):
            stream.readinto(bytearray(10))
    assert time.monotonic() - begun < 10


def test_standard_input(path: Path) -> None:
    program = "import sys; from dfc.inputs.gopen import gopen; f = gopen('-'); print(len(f.read())); f.close()"
    with path.open("rb") as file:
        said = subprocess.run([sys.executable, "-c", program], stdin=file, capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == (f"{len(BODY)}\n", "")


class Moody(MemoryFileSystem):  # type: ignore[misc]
    """A store in memory whose files fail to be read now and then."""

    protocol = "moody"
    store: dict[str, object] = {}
    pseudo_dirs = [""]
    failures = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("moody://", "memory://")))

    def _open(self, *args: object, **kwargs: object) -> io.IOBase:
        opened = super()._open(*args, **kwargs)
        return MoodyFile(opened.getvalue()) if "rb" in (*args, kwargs.get("mode")) else opened


class MoodyFile(io.BytesIO):
    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self.tell() and Moody.failures:
            Moody.failures -= 1
            raise RuntimeError("the connection pool is on fire")
        return super().readinto(buffer)


def test_fsspec() -> None:
    fsspec.register_implementation("moody", Moody, clobber=True)
    store = fsspec.filesystem("moody")
    store.pipe("/d/x.tar", BODY)
    assert read("moody://d/x.tar") == BODY
    assert read("moody://d/x.tar", start=1_000_000, end=1_000_100) == BODY[1_000_000:1_000_100]
    counts = Counts()
    Moody.failures = 2
    assert read("moody://d/x.tar", counts=counts) == BODY
    assert counts.retries == 2
    Moody.failures = 3
    with pytest.raises(ShardUnreadable, match="on fire"):
        read("moody://d/x.tar", options=StreamOptions(retries=1))
    Moody.failures = 0
    with pytest.raises(ShardUnreadable, match="nowhere"):
        open_stream("moody://d/nowhere.tar")
    with pytest.raises(ValueError, match="nosuch"):
        open_stream("nosuch://d/x.tar")


def test_files_of_stores_that_change_or_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("moody", Moody, clobber=True)
    store = fsspec.filesystem("moody")
    store.pipe("/d/y.tar", BODY)
    buffer = bytearray(1_000_000)
    with open_stream("moody://d/y.tar") as stream:
        assert stream.readinto(buffer) == len(buffer)
        store.pipe("/d/y.tar", BODY[::-1])
        Moody.failures = 1
        with pytest.raises(ShardChanged):
            stream.readinto(buffer)
    assert Moody.failures == 0

    info = Moody.info
    monkeypatch.setattr(Moody, "info", lambda self, path, **options: {**info(self, path), "size": len(BODY) + 1})
    with pytest.raises(ShardUnreadable, match=f"at byte {len(BODY)} of {len(BODY) + 1}"):
        read("moody://d/y.tar")
    assert read("moody://d/y.tar", end=1000) == BODY[::-1][:1000]


def test_gopen(path: Path) -> None:
    with gopen(str(path)) as file:
        assert isinstance(file, io.BufferedIOBase)
        assert file.read(10) == BODY[:10]
        assert file.read() == BODY[10:]
        assert not file.seekable()
    copy = path.parent / "copy"
    with gopen(str(copy), "wb") as file:
        file.write(BODY)
    assert copy.read_bytes() == BODY
    with pytest.raises(ValueError, match="'rb' or 'wb'"):
        gopen(str(path), "a")


def test_opening_is_quick_to_import() -> None:
    """Nothing large comes with it: no framework, and no client before one is needed."""
    names = ", ".join(f"dfc.inputs.sources.{name}" for name in ("opening", "specs", "web", "local"))
    program = f"import sys, {names}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "tensorflow", "PIL", "pyarrow", "distributed", "httpx", "fsspec", "numpy"} & set(loaded)
