"""From specs to shards, where no cluster is needed; tests/cluster/test_inputs_streams.py has the rest."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from odd_server import Asked, Goodbye, OddServer, head, ranged, saying

from dfc.errors import BadShardSpec, NoShards, Unreachable
from dfc.inputs.base import ShardRef, ShardUnreadable
from dfc.inputs.epochs.corpus import Corpus
from dfc.inputs.sources.opening import open_stream
from dfc.inputs.sources.specs import resolve
from dfc.inputs.sources.streams import StreamOptions, kind_of, local_path, shown
from dfc.inputs.writers import open_upload


def urls(spec: object) -> list[str]:
    found = resolve(spec)  # type: ignore[arg-type]
    assert not any(ref.replicas for ref in found)
    return [ref.url for ref in found]


def test_kinds() -> None:
    kinds = {
        "web": ["http://h/x", "HTTPS://h/x"],
        "cluster": ["dfc:b/o", "dfc://b/o"],
        "pipe": ["pipe:cat x"],
        "stdin": ["-"],
        "file": ["file:///x", "file:x", "/a/b", "a:b.tar"],
        "fsspec": ["s3://b/k", "simplecache::s3://b/k"],
    }
    assert {kind: {kind_of(url) for url in urls} for kind, urls in kinds.items()} == {kind: {kind} for kind in kinds}


def test_paths_of_file_urls() -> None:
    assert local_path("file:///a%20b") == "/a b"
    assert local_path("file://localhost/a") == "/a"
    assert local_path("file:a%20b") == "a%20b"
    assert local_path("a%20b") == "a%20b"
    with pytest.raises(ValueError, match="nvdata"):
        local_path("file://nvdata/a")


def test_what_messages_show_of_a_url() -> None:
    assert shown("http://me:secret@host:81/a.tar?Signature=1") == "http://host:81/a.tar?…"
    assert shown("dfc:b/a.tar") == "dfc:b/a.tar"


def test_the_published_count() -> None:
    found = urls("http://nvdata/imagenet-@001000.tgz")
    assert (len(found), found[0], found[-1]) == (1000, "http://nvdata/imagenet-000000.tgz", "http://nvdata/imagenet-000999.tgz")


def test_only_the_path_of_a_url_is_expanded() -> None:
    found = urls("http://user@10.0.0.1:80/a%20b-@2.tar?x={1,2}")
    assert found == [f"http://user@10.0.0.1:80/a%20b-{n}.tar?x={{1,2}}" for n in (0, 1)]
    assert urls("http://h/{train,val}-@2.tar") == [f"http://h/{part}-{n}.tar" for n in (0, 1) for part in ("train", "val")]


def test_commands_keep_their_braces() -> None:
    assert urls("pipe:curl me@h/x-{08..10}.tar | awk '{print $1, $2}'") == [
        f"pipe:curl me@h/x-{n}.tar | awk '{{print $1, $2}}'" for n in ("08", "09", "10")
    ]
    assert urls("-") == ["-"]


def test_lists() -> None:
    assert resolve(["a-@2.tar", ["b.tar", "c.tar"], ShardRef("d", ("e",)), Path("f.tar")]) == [
        ShardRef("a-0.tar"),
        ShardRef("a-1.tar"),
        ShardRef("b.tar", ("c.tar",)),
        ShardRef("d", ("e",)),
        ShardRef("f.tar"),
    ]
    assert urls('["a.tar", "b-{0..1}.tar"]') == ["a.tar", "b-0.tar", "b-1.tar"]
    for empty in ([], (), [[]]):
        with pytest.raises((NoShards, BadShardSpec)):
            resolve(empty)
    with pytest.raises(BadShardSpec):
        resolve(f"x-@{10**9}.tar")


def test_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a-0.tar", "a-1.TGZ", "b@2.tar", "sub/c.tar.zst", "sub/readme.txt", "sub/.hidden.tar"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    at = str(tmp_path)
    assert urls(f"{at}/a-*") == [f"{at}/a-0.tar", f"{at}/a-1.TGZ"]
    assert urls(f"{at}/") == [f"{at}/a-0.tar", f"{at}/a-1.TGZ", f"{at}/b@2.tar", f"{at}/sub/c.tar.zst"]
    assert urls(f"{at}/**/*.zst") == [f"{at}/sub/c.tar.zst"]
    assert urls(f"file://{at}/a-?.tar") == [f"file:{at}/a-0.tar"]
    assert urls(f"{at}/b@2.tar") == [f"{at}/b@2.tar"], "a file that is there is no count"
    assert urls(f"{at}/{{a-0,missing}}.tar") == [f"{at}/a-0.tar", f"{at}/missing.tar"], "what is named is not looked up"
    monkeypatch.chdir(tmp_path)
    assert urls("a-*.tar") == ["a-0.tar"]
    assert urls("./sub/") == ["./sub/c.tar.zst"]
    assert urls("sub/../sub/") == ["sub/../sub/c.tar.zst"]
    hidden = tmp_path / ".cache" / "s"
    hidden.mkdir(parents=True)
    (hidden / "d.tar").write_bytes(b"")
    assert urls(f"{hidden}/") == [f"{hidden}/d.tar"], "a folder that is named is not hidden"
    assert urls(f"local://{hidden}/") == [f"file://{hidden}/d.tar"]
    assert f"{hidden}/d.tar" not in urls(f"{at}/")
    for nothing in (f"{at}/x-*.tar", f"{at}/nowhere/"):
        with pytest.raises(NoShards):
            resolve(nothing)


def test_fsspec() -> None:
    memory = fsspec.filesystem("memory")
    for name in ("s/a-0.tar", "s/a-1.tar", "s/deep/b.tgz", "s/notes.txt"):
        memory.pipe(f"/{name}", b"")
    try:
        assert urls("memory://s/a-@2.tar") == ["memory://s/a-0.tar", "memory://s/a-1.tar"]
        assert urls("memory://s/a-*.tar") == ["memory:///s/a-0.tar", "memory:///s/a-1.tar"]
        assert urls("memory://s/") == ["memory:///s/a-0.tar", "memory:///s/a-1.tar", "memory:///s/deep/b.tgz"]
        with pytest.raises(NoShards):
            resolve("memory://nowhere/")
    finally:
        memory.rm("/s", recursive=True)


def test_shards_files(tmp_path: Path) -> None:
    listed = {"shards": [["a.tar", "http://h/a.tar"], "b.tar", ["/c.tar"]], "metadata": {"n": 3}}
    (tmp_path / "x.shards").write_text(json.dumps(listed))
    at = str(tmp_path)
    first = resolve(f"{at}/x.shards", seed=1)
    assert {first[0].url, *first[0].replicas} == {f"{at}/a.tar", "http://h/a.tar"}
    assert first[1:] == [ShardRef(f"{at}/b.tar"), ShardRef("/c.tar")]
    assert all(resolve(f"{at}/x.shards", seed=1) == first for _ in range(5))
    assert {resolve(f"{at}/x.shards", seed=seed)[0].url for seed in range(20)} == {f"{at}/a.tar", "http://h/a.tar"}


@pytest.mark.parametrize(
    "text",
    [
        '{"metadata": {"a": ' + "[" * 100_000, "", "[]", "{}", '{"shards": {}}', '{"shards": [1]}', '{"shards": []}',
        '{"shards": [[]]}',
    ],
)  # fmt: skip
def test_shards_files_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.shards").write_text(text)
    with pytest.raises((BadShardSpec, NoShards)):
        resolve(str(tmp_path / "x.shards"))


def test_shards_files_of_a_server_name_no_files_and_no_commands(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Iterator[bytes]:
        body = json.dumps({"shards": [[listed]]}).encode()
        yield ranged(body, asked) + body

    options = StreamOptions(direct=False)
    with OddServer(answer) as server:
        for name, means in (
            ("sub/a b.tar", "/d/sub/a b.tar"),
            ("/a.tar", "/a.tar"),
            ("s3://b/k", "s3://b/k"),
            ("dfc:b/o", "dfc:b/o"),
            ("part:1.tar", "/d/part:1.tar"),
            ("x:local.tar", "/d/x:local.tar"),
            ("x:/../../up.tar", "/up.tar"),
            (" pipe:rm x", "/d/ pipe:rm x"),
            ("\tfile:///etc/passwd", "/d/file:/etc/passwd"),
            ("FILE:x", "/d/FILE:x"),
        ):
            listed = name
            expected = means if means.startswith(("s3:", "dfc:")) else server.url + means
            assert resolve(f"{server.url}/d/x.shards?v=1", options=options) == [ShardRef(expected)]
        for refused in (
            "pipe:rm x", "file:///etc/passwd", "-", "local:///etc/passwd", "simplecache::file:///etc/passwd",
            "simplecache::s3://b/k", "git:///srv/repository:x.tar", "memory://x.tar",
        ):  # fmt: skip
            listed = refused
            with pytest.raises(BadShardSpec, match="must name URLs"):
                resolve(f"{server.url}/x.shards", options=options)
    (tmp_path / "x.shards").write_text(json.dumps({"shards": ["pipe:rm x"]}))
    with pytest.raises(BadShardSpec, match="must name URLs"):
        resolve(str(tmp_path / "x.shards"))


def test_shards_files_of_clusters_and_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    def text_of(name: str) -> bytes:
        return json.dumps({"shards": [name]}).encode()

    for base, name, means in (
        ("dfc:b/d/x.shards", "a.tar", "dfc:b/d/a.tar"),
        ("dfc:b/x.shards", "a.tar", "dfc:b/a.tar"),
        ("dfc://b/d/x.shards", "a.tar", "dfc://b/d/a.tar"),
        ("dfc:b/x.shards", "/etc/passwd", None),
        ("dfc://b/x.shards", "/etc/passwd", None),
        ("memory://b/x.shards", "a.tar", "memory://b/a.tar"),
        ("memory://b/x.shards", "memory://c/a.tar", "memory://c/a.tar"),
        ("memory://b/x.shards", "local:///etc/passwd", None),
        ("local:///d/x.shards", "local:///e/a.tar", "local:///e/a.tar"),
    ):
        monkeypatch.setattr("dfc.inputs.sources.specs._read_whole", lambda url, options, name=name: text_of(name))
        if means is None:
            with pytest.raises(BadShardSpec, match="must name URLs"):
                resolve(base)
        else:
            assert urls(base) == [means]


def test_other_servers_cannot_list() -> None:
    with OddServer(saying(head("404 No", "Content-Length: 0"))) as server:
        for path in ("/train-*.tar", "/b/", "/"):
            with pytest.raises(BadShardSpec, match="not on a DFC server"):
                resolve(server.url + path)
        assert urls(server.url + "/train-@1.tar") == [server.url + "/train-0.tar"]


def test_why_a_server_is_not_reached(caplog: pytest.LogCaptureFixture) -> None:
    """A refused connection is tried again, and somebody hears of it; what is surely mistyped is said at once."""
    with OddServer(lambda _asked: iter(())) as gone:
        pass
    with pytest.raises(ShardUnreadable, match=r"train-\*.tar: giving up after 3 tries: .* refused; is `dfc serve` running"):
        resolve(gone.url + "/train-*.tar", options=StreamOptions(retries=2))
    assert [record.getMessage().partition(": ")[2][:14] for record in caplog.records] == ["still retrying"]
    with pytest.raises(ShardUnreadable) as caught:
        Corpus.open(gone.url + "/toy/train-@3.tar", options=StreamOptions(retries=0))
    assert str(caught.value).startswith(gone.url + "/toy/train-0.tar: giving up")


def test_a_scheme_that_was_forgotten() -> None:
    for path in ("localhost:8080/toy/train-0.tar", "[::1]:80/x.tar", "localhost/x.tar"):
        with pytest.raises(ShardUnreadable, match="did you mean http://" + re.escape(path)):
            open_stream(path)
        with pytest.raises(FileNotFoundError, match="did you mean http://" + re.escape(path)):
            open_upload(path)
    for spec in ("nvdata:8080/toy/train-*.tar", "nvdata:8080/toy/"):
        with pytest.raises(NoShards, match="did you mean http://nvdata"):
            resolve(spec)
    with pytest.raises(ShardUnreadable, match=r"directory$"):
        open_stream("a:b/train.tar")


@contextmanager
def without_tls() -> Iterator[int]:
    """The port of a server that answers a first byte which is none of HTTP at once, as nodes and nginx do."""

    def serve() -> None:
        while data := (sock := listener.accept()[0]).recv(4096):
            with sock:
                sock.sendall(head("400 Bad" if data[0] == 0x16 else "404 No", "Content-Length: 0", "Connection: close"))
        sock.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve)
        thread.start()
        yield port
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()


@pytest.mark.parametrize("path", ["/toy/train-*.tar", "/toy/train-@3.tar", "/toy/"])
def test_addresses_that_cannot_be_right_are_refused_at_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = socket.getaddrinfo

    def lookup(host: Any, *rest: Any, **more: Any) -> Any:  # the resolver of this machine may be slow
        if host == "no-such-host.localhost.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return asked(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    began_s = time.monotonic()
    with without_tls() as port:
        for origin, cause in (
            ("http://no-such-host.localhost.invalid", "not known"),
            (f"https://127.0.0.1:{port}", r"TLS handshake failed \("),
        ):
            with pytest.raises(ShardUnreadable, match=cause):
                Corpus.open(origin + path)
            with pytest.raises(ShardUnreadable, match=cause):
                open_stream(origin + "/toy/x.tar")
            with pytest.raises(Unreachable, match=cause), open_upload(origin + "/toy/x.tar") as file:
                file.write(b"1")
    assert time.monotonic() - began_s < 30


def test_a_name_that_was_known_may_be_gone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of containers vanish while they restart; the resolver of this machine knows none that does."""
    failures = []

    def resolver(*given: Any, **more: Any) -> Any:
        if len(failures) < 3:
            failures.append(given)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(*given, **more)

    known = socket.getaddrinfo

    def answer(asked: Asked) -> Iterator[bytes]:
        if asked.target == "/v1/cluster":
            yield head("503 Starting", "Content-Length: 0")
            raise Goodbye
        yield head("200 OK", "Content-Length: 1") + b"x"
        raise Goodbye

    with OddServer(answer) as server:
        open_stream(server.url + "/x").close()
        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        open_stream(server.url + "/x").close()
    assert len(failures) == 3
