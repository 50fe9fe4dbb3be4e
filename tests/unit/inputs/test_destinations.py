"""Uploads to files, commands, web servers and clouds: whole or not at all, with real files, sockets and processes."""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from harness import wait_for
from odd_server import Asked, Goodbye, OddServer, head

from dfc.errors import BadName, Forbidden, Unreachable
from dfc.inputs.base import InputError
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.uploads import UploadFile, Uploads, destination_of
from dfc.inputs.writers import ShardWriter, open_upload
from dfc.limits import MIB


def test_a_file_is_there_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "out.bin"
    with open_upload(path) as file:
        assert file.write(b"hello ") == 6
        file.write(bytearray(b"world"))
        assert not path.exists()
        assert file.tell() == 11
        file.seek(0)
        file.write(b"J")
    assert path.read_bytes() == b"Jello world"
    assert os.listdir(tmp_path) == ["out.bin"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")
    file.close()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_exception_stores_nothing_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.bin"
    path.write_bytes(b"old")

    def fail() -> None:
        with open_upload(f"file://{path}") as file:
            file.write(b"new" * 1_000_000)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_a_forgotten_file_is_not_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file: Any = open_upload(tmp_path / "out.bin")
    file.write(b"half")
    with caplog.at_level(logging.WARNING, "dfc.inputs"):
        del file
    assert os.listdir(tmp_path) == []
    assert "out.bin was not stored, because it was never closed" in caplog.text
    (tmp_path / "out.txt").write_text("whole")
    layers: list[Callable[[Any], Any]] = [
        io.TextIOWrapper,
        io.BufferedWriter,
        lambda file: io.TextIOWrapper(io.BufferedWriter(file)),
    ]
    for layer in layers:
        caplog.clear()
        file = layer(open_upload(tmp_path / "out.txt"))
        file.write("half" if isinstance(file, io.TextIOWrapper) else b"half")
        file.flush()
        with caplog.at_level(logging.WARNING, "dfc.inputs"):
            del file
        assert (tmp_path / "out.txt").read_text() == "whole"
        assert "out.txt was not stored, because it was never closed" in caplog.text
        with layer(open_upload(tmp_path / "out.bin")) as file:
            file.write("done" if isinstance(file, io.TextIOWrapper) else b"done")
        assert (tmp_path / "out.bin").read_text() == "done"


def test_exclusive_files_replace_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.bin"
    with open_upload(path, exclusive=True) as file:
        file.write(b"first")
    with pytest.raises(FileExistsError), open_upload(path, exclusive=True) as file:
        file.write(b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_links_stay_links_and_devices_devices(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with open_upload(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    with open_upload("/dev/null") as file:
        file.write(b"gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_names_of_every_length_fit(tmp_path: Path) -> None:
    name = "ü" * 127 + "x"
    with open_upload(tmp_path / name) as file:
        file.write(b"1")
    assert os.listdir(tmp_path) == [name]


def test_commands_get_it_whole_and_their_status_counts(tmp_path: Path) -> None:
    with open_upload(f"pipe:cat > {tmp_path}/out") as file:
        file.write(b"x" * (5_000_000))
        assert os.listdir(tmp_path) == []
    assert (tmp_path / "out").stat().st_size == 5_000_000
    with pytest.raises(OSError, match="exited with status 3"):
        with open_upload("pipe:exit 3") as file:
            file.write(b"x" * 1_000_000)


def test_commands_take_no_part_for_the_whole(tmp_path: Path) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                assert (tmp_path / "begun").read_text() == "1"  # waits for the command
                raise MemoryError
            return super().read(10)

    os.mkfifo(tmp_path / "begun")
    destination = destination_of(f"pipe:printf 1 > {tmp_path}/begun; cat > {tmp_path}/out; touch {tmp_path}/done")
    with pytest.raises(MemoryError):
        destination.store(Failing(bytes(100)))
    assert not (tmp_path / "done").exists()


def test_standard_output() -> None:
    program = "from dfc.inputs.writers import open_upload\nwith open_upload('-') as file: file.write(b'to stdout')"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"to stdout"


def test_clouds_by_fsspec() -> None:
    with open_upload("memory://bucket/a/b.bin") as file:
        file.write(b"x" * (5_000_000))
    with open_upload("memory://bucket/small.bin") as file:
        file.write(b"small")
    assert fsspec.filesystem("memory").size("/bucket/a/b.bin") == 5_000_000
    assert fsspec.filesystem("memory").cat("/bucket/small.bin") == b"small"
    with pytest.raises(FileExistsError), open_upload("memory://bucket/small.bin", exclusive=True) as file:
        file.write(b"other")


def test_no_space_names_the_directory_and_stores_nothing(tmp_path: Path) -> None:
    """The kernel refuses to let a file grow: a shard that did not fit is not stored, those before it are."""
    program = f"""
import os, resource, sys, tempfile
from dfc.inputs.writers import ShardWriter, TarWriter, open_upload
resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 20, 6 << 20))
os.mkdir({str(tmp_path / "spool")!r})
sample = lambda key: {{"__key__": key, "bin": bytes(1 << 20)}}
for url in ({str(tmp_path / "out-%06d.tar")!r}, "pipe:cat > {tmp_path}/pipe-%06d.tar"):
    try:
        with ShardWriter(url, maxcount=4, directory={str(tmp_path / "spool")!r}) as writer:
            for number in range(4):
                writer.write(sample(f"{{number}}"))
            for number in range(20):
                writer.write({{"__key__": f"large{{number}}", "bin": bytes(3 << 20)}})
    except OSError as problem:
        print(problem, [shard.samples for shard in writer.shards])
file = open_upload("pipe:cat > {tmp_path}/whole", directory={str(tmp_path / "spool")!r})
try:
    file.write(bytes(7 << 20))
    file.flush()
except OSError:
    pass
try:
    file.close()
except OSError as problem:
    print(problem)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.rpartition("'")[2] for line in lines[:2]] == [" [4]", " [4]"]
    assert all("File too large" in line for line in lines[:2])
    assert "spool" in lines[1]
    assert "not stored, because a write failed" in lines[2]
    assert sorted(os.listdir(tmp_path)) == ["out-000000.tar", "pipe-000000.tar", "spool"]
    assert os.listdir(tmp_path / "spool") == []


class Recorder(BaseHTTPRequestHandler):
    """A web server that is no DFC node: it answers PUT as its list says, and keeps what was stored."""

    protocol_version = "HTTP/1.1"
    location = "/elsewhere"
    answers: list[int]
    facts: dict[str, str]  # headers that HEAD gets
    stored: dict[str, bytes]
    seen: list[tuple[str, str, dict[str, str]]]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(("PUT", self.path, dict(self.headers)))
        status = self.answers.pop(0) if self.answers else 201
        if status < 300:
            self.stored[self.path] = body
        if status == 0:
            self.close_connection = True  # the answer is lost
            return
        self.send_response(status)
        if status == 307:
            self.send_header("Location", self.location)
        if status == 503:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.seen.append(("GET", self.path, dict(self.headers)))
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.seen.append(("HEAD", self.path, dict(self.headers)))
        self.send_response(200)
        for name, value in self.facts.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[tuple[str, type[Recorder]]]:
    handler = type("Handler", (Recorder,), {"answers": [], "facts": {}, "stored": {}, "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


def test_web_servers_get_length_and_checksum_and_are_tried_again(web: tuple[str, type[Recorder]]) -> None:
    url, server = web
    server.answers[:] = [503, 429, 307, 502]
    body = os.urandom(3_000_000)
    with open_upload(url.replace("//", "//me:p%40ss@") + "/up/a%20b.bin?signature=1") as file:
        file.write(body)
    assert server.stored == {"/elsewhere": body} or server.stored == {"/up/a%20b.bin?signature=1": body}
    puts = [(path, headers) for method, path, headers in server.seen if method == "PUT"]
    assert [path for path, _ in puts] == ["/up/a%20b.bin?signature=1"] * 3 + ["/elsewhere", "/up/a%20b.bin?signature=1"]
    for _, headers in puts:
        assert headers["Content-Length"] == "3000000"
        assert headers["Content-MD5"] == base64.b64encode(hashlib.md5(body).digest()).decode()
        assert headers["Authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert all(method == "PUT" for method, _, _ in server.seen)  # a signed URL is not asked whether it is a cluster


def test_web_servers_that_refuse_are_not_asked_again(web: tuple[str, type[Recorder]]) -> None:
    url, server = web
    server.answers[:] = [403]
    file = open_upload(f"{url}/up.bin", options=StreamOptions(token="secret", headers={"X-Own": "1"}))
    file.write(b"1")
    with pytest.raises(Forbidden) as caught:
        file.close()
    assert file.closed
    assert caught.value.__notes__ == [f"while storing {url}/up.bin"]
    assert [method for method, _, _ in server.seen] == ["PUT"] or [method for method, _, _ in server.seen] == ["GET", "PUT"]
    assert server.seen[-1][2]["X-Own"] == "1"


def test_tokens_and_signatures_stay_where_they_belong(
    web: tuple[str, type[Recorder]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url, server = web
    server.location = url.replace("127.0.0.1", "localhost") + "/elsewhere"

    def put(address: str, **options: Any) -> list[str | None]:
        server.seen.clear()
        server.answers[:] = [307]
        with open_upload(address, options=StreamOptions(**options)) as file:
            file.write(b"1")
        return [headers.get("Authorization") for method, _, headers in server.seen if method == "PUT"]

    assert put(f"{url}/a", token="given") == ["Bearer given", None]
    assert put(f"{url}/a", direct=False, headers={"cookie": "c=1", "X-Own": "1"}) == [None, None]
    first, second = [headers for method, _, headers in server.seen if method == "PUT"]
    assert (first["cookie"], first["X-Own"]) == ("c=1", "1")
    assert not {"cookie", "X-Own"} & set(second)
    assert second["Content-MD5"] == first["Content-MD5"]
    assert put(url.replace("//", "//me:word@") + "/a") == ["Basic bWU6d29yZA==", None]
    monkeypatch.setenv("DFC_TOKEN", "mine")
    monkeypatch.setenv("DFC_URL", "http://cluster.invalid:8080")
    assert put(f"{url}/a") == [None, None]
    monkeypatch.setenv("DFC_URL", url)
    assert put(f"{url}/a") == ["Bearer mine", None]
    file = open_upload(f"{url}/a?signature=secret")
    with caplog.at_level(logging.WARNING, "dfc.inputs"):
        del file
    assert f"{url}/a?… was not stored, because it was never closed" in caplog.text


@pytest.mark.parametrize("location", ["http://h:99999999/x", "http://[::1/x", "http://a..b/x", f"http://{'a' * 70}/x"])
def test_redirects_to_what_is_no_url(web: tuple[str, type[Recorder]], location: str) -> None:
    url, server = web
    server.location = location
    server.answers[:] = [307]
    file = open_upload(f"{url}/a?signature=secret")
    file.write(b"1")
    with pytest.raises(InputError, match="redirects to an invalid one") as caught:
        file.close()
    assert "secret" not in str(caught.value)


def test_exclusive_uploads_whose_answer_was_lost(web: tuple[str, type[Recorder]]) -> None:
    """The second try finds the object there: it is compared with what was sent."""
    url, server = web

    def put(answers: list[int], **facts: str) -> None:
        server.seen.clear()
        server.answers[:] = answers
        server.facts = {name.replace("_", "-"): value for name, value in facts.items()}
        with open_upload(f"{url}/up.bin", exclusive=True, options=StreamOptions(direct=False)) as file:
            file.write(b"body")

    tag = hashlib.md5(b"body").hexdigest()
    put([0, 412], Content_Length="4", ETag=f'"{tag}"')
    assert [method for method, _, _ in server.seen] == ["PUT", "PUT", "HEAD"]
    put([503, 412], Content_MD5=base64.b64encode(hashlib.md5(b"body").digest()).decode())
    for facts in ({"Content_Length": "5"}, {"Content_MD5": "other", "Content_Length": "4"}):
        with pytest.raises(FileExistsError, match="File exists"):
            put([0, 412], **facts)
    with pytest.raises(FileExistsError, match="perhaps stored by an earlier try of this upload whose answer was lost"):
        put([0, 412], Content_Length="4", ETag='"0-4"')
    with pytest.raises(FileExistsError, match="File exists"):
        put([412], Content_Length="4", ETag=f'"{tag}"')
    assert [method for method, _, _ in server.seen] == ["PUT"]


def test_who_says_thanks_too_early_has_stored_nothing() -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        yield head("200 OK", "Content-Length: 0")
        raise Goodbye

    with OddServer(answer) as server:
        file = open_upload(server.url + "/up.bin", options=StreamOptions(direct=False, retries=1))
        file.write(bytes(8 * MIB))
        with pytest.raises(Unreachable, match="before the whole body was sent"):
            file.close()
        assert len(server.asked) == 2


def test_a_server_that_is_not_there() -> None:
    file = open_upload("http://127.0.0.1:9/up.bin", options=StreamOptions(retries=1))
    file.write(b"1")
    with pytest.raises(Unreachable):
        file.close()


def test_the_first_failure_ends_a_writer(web: tuple[str, type[Recorder]]) -> None:
    url, server = web
    server.answers[:] = [201, 403]
    writer = ShardWriter(f"{url}/s-%d.tar", maxcount=1, uploads=1)

    def write() -> None:
        with writer:
            for number in range(10):
                writer.write({"__key__": f"{number}", "cls": number})

    with pytest.raises(Forbidden):
        write()
    assert [shard.url for shard in writer.shards] == [f"{url}/s-0.tar"]
    assert len(server.stored) == 1


def test_names_that_cannot_be_are_refused_at_once() -> None:
    with pytest.raises(BadName):
        open_upload("dfc:bucket/../x")
    with pytest.raises(ValueError, match="dfc:bucket/object"):
        open_upload("dfc://")
    with pytest.raises(BadName):
        ShardWriter("dfc:bucket//x-%06d.tar")


def test_uncommitted_files_wait(tmp_path: Path) -> None:
    for commit in (True, False):
        file = UploadFile(destination_of(tmp_path / "out"), autocommit=False)
        file.write(b"1")
        file.close()
        assert file.closed
        assert not (tmp_path / "out").exists()
        if not commit:
            file.discard()
        else:
            file.commit()
            assert (tmp_path / "out").read_bytes() == b"1"
            (tmp_path / "out").unlink()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("at_once", [False, True])
def test_who_stops_waits_for_what_no_thread_has_begun_unless_at_once(at_once: bool) -> None:
    """On a busy machine a shard may be complete, and its upload not begun, when a program fails."""
    uploads, go_on, stored, dropped = Uploads(2), threading.Event(), [], []
    for _ in range(2):
        uploads._executor.submit(go_on.wait, 60)
    uploads.add(lambda: stored.append("shard"), lambda: dropped.append("shard"))
    stopping = threading.Thread(target=uploads.stop, kwargs={"at_once": at_once})
    stopping.start()
    wait_for(lambda: uploads._executor._shutdown, "it to stop")
    with uploads._executor._shutdown_lock:  # and to have dropped what it drops
        go_on.set()
    stopping.join(60)
    assert stored == ([] if at_once else ["shard"])
    assert dropped == (["shard"] if at_once else []), "its file is closed by whoever is done with it"


def test_a_drop_that_fails_does_not_keep_others_from_being_dropped() -> None:
    uploads, go_on, dropped = Uploads(3), threading.Event(), []
    for _ in range(3):
        uploads._executor.submit(go_on.wait, 60)

    def fail() -> None:
        raise OSError("the spool cannot be closed")

    for drop in (fail, lambda: dropped.append("second")):
        uploads.add(lambda: None, drop)
    threading.Thread(target=lambda: (wait_for(lambda: uploads._executor._shutdown, "it to stop"), go_on.set())).start()
    assert [str(problem) for problem in uploads.stop(at_once=True)] == ["the spool cannot be closed"]
    assert dropped == ["second"]
