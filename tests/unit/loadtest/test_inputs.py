"""What the rows about loaders stand on: pictures like photographs, shards, readers in processes of their own."""

from __future__ import annotations

import gzip
import io
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from job_shards import members_of
from PIL import Image

from loadtest.inputs import readers
from loadtest.inputs.child import read
from loadtest.inputs.dataset import compress, picture_tar, plain_tar
from loadtest.inputs.pictures import HEIGHT, WIDTH, draw_photograph, photographs
from loadtest.processes import ProcessFailed


class Quiet(SimpleHTTPRequestHandler):
    pause_s = 0.0  # before an answer

    def do_GET(self) -> None:
        time.sleep(self.pause_s)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The URL under which a web server of Python's gives the files of `tmp_path`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_pictures_cost_what_photographs_cost():
    jpegs = list(photographs(4))
    assert len({*jpegs}) == 4
    assert 90_000 < sum(map(len, jpegs)) / 4 < 130_000
    with Image.open(io.BytesIO(jpegs[0])) as picture:
        assert picture.size == (WIDTH, HEIGHT)
        assert picture.mode == "RGB"
        decoded = np.asarray(picture, dtype=np.int32)
    drawn = draw_photograph(0).astype(np.int32)
    assert np.abs(decoded - drawn).mean() < 5
    # Neighbours are alike, as in photographs and not as in noise.
    assert np.abs(np.diff(drawn, axis=1)).mean() < 0.3 * drawn.std()


def test_shards_hold_what_the_rows_count():
    body = picture_tar(5, 2)
    members = members_of(body)
    assert len(members) == 10
    assert len({name.partition(".")[0] for name, _ in members}) == 5
    assert members[0][1] == members[4][1]
    assert gzip.decompress(compress(body)) == body
    assert len(compress(plain_tar(50, 10_000, 64))) < 0.8 * len(plain_tar(50, 10_000, 64))


def test_decompressor_and_decoder_alone(tmp_path):
    body = picture_tar(4, 2)
    (tmp_path / "x.tar").write_bytes(body)
    (tmp_path / "x.tgz").write_bytes(compress(body))
    assert readers.inflate({"path": tmp_path / "x.tgz", "rounds": 2})["size"] == 2 * len(body)
    found = read("decode", path=str(tmp_path / "x.tar"), rounds=3, workers=2)
    assert found["samples"] == 12
    assert found["peak_bytes"] > 1_000_000
    (tmp_path / "x.tar").write_bytes(body.replace(b"\xff\xd8\xff", b"\0\0\0"))
    with pytest.raises(ProcessFailed, match="exit codes"):
        read("decode", path=str(tmp_path / "x.tar"), rounds=1, workers=2)


def test_peers_read_everything(served, tmp_path, monkeypatch):
    monkeypatch.setattr(Quiet, "pause_s", 0.5)  # so that a process that fetches is seen
    body = plain_tar(30, 1000)
    for number in range(2):
        (tmp_path / f"x-{number}.tar").write_bytes(body)
    urls = [f"{served}/x-{number}.tar" for number in range(2)]
    found = read("webdataset", watch=True, urls=urls)
    assert found["samples"] == 60
    assert found["size"] == 60 * 1003
    assert 0 < found["first_s"] <= found["seconds"]
    assert found["workers_peak_bytes"] > 0  # curl's, or the shell's that runs it
    assert readers.receive({"urls": urls})["size"] == 2 * len(body)
    with pytest.raises(OSError, match="404"):
        readers.receive({"urls": [f"{served}/none.tar"]})


def test_our_samples(served, tmp_path):
    (tmp_path / "x.tar").write_bytes(plain_tar(30, 1000))
    found = read("samples", url=f"{served}/x.tar", ours={"shuffle": False})
    assert (found["samples"], found["size"]) == (30, 30 * 1003)
    assert 0 < found["imported_bytes"] <= found["peak_bytes"]
    assert read("samples", url=f"{served}/x.tar", first_only=True)["samples"] == 1


def test_a_reader_that_fails_says_why(tmp_path):
    with pytest.raises(ProcessFailed, match="No such file"):
        read("inflate", path=os.fspath(tmp_path / "none"), rounds=1)
