"""Objects through the client: where requests go, and what happens when nodes, connections and bytes fail."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doors import NoDoor
from fake_node import abort_a_read

from dfc import errors
from dfc.checksum import checksum_of
from dfc.client import Cancelled, Client, RetryPolicy
from dfc.client import client as client_module
from dfc.client.transfers import make_source
from dfc.http.retry import error_from_answer


class TestRouting:
    def test_goes_straight_to_the_owner(self, fake: Any, client: Client, body: bytes) -> None:
        stored = client.put("b", "x.tar", body)
        assert (stored.checksum, stored.size, stored.warnings) == (checksum_of(body), len(body), ("w",))
        assert client.get("b", "x.tar") == body
        assert [line for line in fake.log_of()["proxy"] if "objects" in line] == []
        assert len(fake.target.requests("GET", "/v1/objects/b/x.tar")) == 1

    def test_relays_when_the_owner_cannot_be_reached(self, fake: Any, client: Client, body: bytes) -> None:
        with NoDoor() as nowhere:
            fake.target.advertise_url = nowhere.url
            client.put("b", "x", body)
            assert client.get("b", "x") == body
        assert [path for path, _ in fake.proxy.requests("PUT")] == ["/v1/objects/b/x?relay=1"]
        assert [path for path, _ in fake.proxy.requests("GET", "objects")] == ["/v1/objects/b/x?relay=1"]

    def test_asks_the_given_node_while_the_owner_is_down(self, fake: Any, client: Client) -> None:
        fake.target.state = "down"
        fake.proxy.fail("GET", status=503, headers={"Retry-After": "0"})
        fake.proxy.objects["b", "x"] = b"1"
        assert client.get("b", "x") == b"1"
        assert fake.target.log == []

    def test_follows_a_redirect_and_asks_for_a_new_map(self, fake: Any, client: Client, make_node: Any, body: bytes) -> None:
        client.put("b", "first", b"1")
        other = make_node("target")
        fake.target.fail("PUT", status=307, headers={"Location": f"{other.url}/v1/objects/b/x"})
        client.put("b", "x", iter([body]))
        assert other.objects["b", "x"] == body
        # The other node is in no map: it does not get the token.
        assert "authorization" not in other.requests("PUT")[0][1]
        assert fake.target.requests("PUT")[0][1]["authorization"] == "Bearer secret"
        assert len(fake.proxy.requests("GET", "/v1/cluster")) == 2

    def test_a_redirect_to_nowhere_falls_back_to_the_relay(self, fake: Any, client: Client) -> None:
        fake.proxy.objects["b", "x"] = b"1"
        fake.target.fail("GET", status=307, headers={"Location": "http://127.0.0.1:1/v1/objects/b/x"})
        assert client.get("b", "x") == b"1"
        assert [path for path, _ in fake.proxy.requests("GET", "objects")] == ["/v1/objects/b/x?relay=1"]

    @pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
    def test_a_node_that_does_not_answer_to_its_name_says_so_once(self, fake: Any, client: Client, method: str) -> None:
        """Neither another try nor another way would mend it: a setting of the node does."""
        call = {
            "GET": lambda: client.get("b", "x"),
            "HEAD": lambda: client.head("b", "x"),
            "PUT": lambda: client.put("b", "x", b"1"),
            "DELETE": lambda: client.delete("b", "x"),
        }[method]
        fake.target.fail(method, status=421, code="misdirected")
        with pytest.raises(errors.Misdirected) as caught:
            call()
        said = "said misdirected" if method != "HEAD" else f"HEAD {fake.target.url}/v1/objects/b/x was answered with status 421"
        assert caught.value.message == said
        assert len(fake.target.requests(method)) == 1
        assert fake.proxy.requests(method, "objects") == []

    def test_an_endless_redirect_ends(self, fake: Any, client: Client) -> None:
        object.__setattr__(client._calls.policy, "retries", 0)
        for _ in range(10):
            fake.target.fail("GET", status=307, headers={"Location": f"{fake.target.url}/v1/objects/b/x"})
        with pytest.raises(errors.Unavailable, match="redirected"):
            client.get("b", "x")

    def test_names_are_escaped(self, fake: Any, client: Client) -> None:
        name = "a b/ü%20#?.tar"
        client.put("b", name, b"1")
        assert fake.target.objects == {("b", name): b"1"}
        assert client.get("b", name) == b"1"

    @pytest.mark.parametrize(("bucket", "name"), [("..", "x"), ("b", "../x"), ("b", ""), ("v1", "x"), ("b", "a//b")])
    def test_bad_names_are_refused_before_anything_is_sent(self, fake: Any, client: Client, bucket: str, name: str) -> None:
        with pytest.raises(errors.BadName):
            client.put(bucket, name, b"")
        assert fake.proxy.log == fake.target.log == []

    def test_nobody_there_is_said_soon(self) -> None:
        start = time.monotonic()
        with NoDoor() as nowhere, Client(nowhere.url) as client, pytest.raises(errors.Unreachable):
            client.get("b", "x")
        assert time.monotonic() - start < 10

    @pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://h", "http://h/path", "http://h?x=1", "http://"])
    def test_bad_urls(self, url: str) -> None:
        with pytest.raises(errors.BadRequest):
            Client(url)


class TestUploads:
    def test_every_kind_of_body(self, fake: Any, client: Client, tmp_path: Path, body: bytes) -> None:
        path = tmp_path / "file"
        path.write_bytes(body)

        def pieces() -> Iterator[bytes]:
            for at in range(0, len(body), 100_000):
                yield body[at : at + 100_000]
                yield b""

        with path.open("rb") as file:
            file.seek(5)
            client.put("b", "file object", file)
        client.put("b", "path", path)
        client.put("b", "string", str(path))
        client.put("b", "bytes", body)
        client.put("b", "array", bytearray(body))
        client.put("b", "iterator", pieces())
        client.put("b", "empty", b"")
        client.put("b", "no pieces", iter(()))
        stored = {name: data for (_, name), data in fake.target.objects.items()}
        assert stored.pop("file object") == body[5:]
        assert stored.pop("empty") == stored.pop("no pieces") == b""
        assert set(stored) == {"path", "string", "bytes", "array", "iterator"}
        assert all(data == body for data in stored.values())

    def test_a_file_that_cannot_be_rewound(self, fake: Any, client: Client) -> None:
        class Pipe(io.BytesIO):
            def seekable(self) -> bool:
                return False

        client.put("b", "x", Pipe(b"abc" * 1000))
        assert fake.target.objects["b", "x"] == b"abc" * 1000
        assert fake.target.requests("PUT")[0][1]["transfer-encoding"] == "chunked"

    def test_the_checksum_goes_along_when_it_is_cheap(
        self, fake: Any, client: Client, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "file"
        path.write_bytes(body)
        client.put("b", "x", path)
        monkeypatch.setattr(client_module, "HASH_FIRST_BYTES", 1000)
        client.put("b", "x", path)
        first, second = (headers for _, headers in fake.target.requests("PUT"))
        assert first["x-dfc-checksum"] == f"xxh3-128={checksum_of(body)}"
        assert "x-dfc-checksum" not in second

    def test_large_bodies_ask_first(self, fake: Any, client: Client, body: bytes) -> None:
        client.put("b", "x", b"small")
        client.put("b", "x", body)
        assert ["expect" in headers for _, headers in fake.target.requests("PUT")] == [False, True]

    def test_a_refusal_is_heard_though_the_body_is_large(self, fake: Any, client: Client, body: bytes) -> None:
        for fault in ({"status": 401, "code": "unauthorized"}, {"status": 507, "code": "no_space", "read_before": 300_000}):
            fake.target.fail("PUT", **fault)
        with pytest.raises(errors.Unauthorized, match="said unauthorized"):
            client.put("b", "x", body * 4)
        with pytest.raises(errors.NoSpace):
            client.put("b", "x", body * 4)
        assert len(fake.target.requests("PUT")) == 2

    def test_tries_again(self, fake: Any, client: Client, body: bytes) -> None:
        fake.target.fail("PUT", status=503)
        fake.target.fail("PUT", hang_up=True, read_before=100_000)
        fake.target.fail("PUT", hang_up=True)
        moved: list[int] = []
        client.put("b", "x", body, progress=moved.append)
        assert fake.target.objects["b", "x"] == body
        assert sum(moved) == len(body)

    def test_waits_as_long_as_it_is_asked(self, fake: Any, client: Client) -> None:
        fake.target.fail("PUT", status=503, headers={"Retry-After": "1"})
        start = time.monotonic()
        client.put("b", "x", b"1")
        assert time.monotonic() - start >= 1

    def test_an_iterator_is_not_begun_again(self, fake: Any, client: Client) -> None:
        fake.target.fail("PUT", hang_up=True, read_before=1000)
        with pytest.raises((errors.Unreachable, errors.BadRequest)):
            client.put("b", "x", (b"x" * 1000 for _ in range(1000)))
        assert fake.target.objects == {}

    def test_an_iterator_that_was_not_begun_is_sent_again(self, fake: Any, client: Client) -> None:
        fake.target.fail("PUT", status=503)
        client.put("b", "x", iter([b"1", b"2"]))
        assert fake.target.objects["b", "x"] == b"12"

    def test_an_error_of_the_iterator_comes_through_and_stores_nothing(self, fake: Any, client: Client) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"1"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            client.put("b", "x", pieces())
        assert fake.target.objects == {}

    def test_bytes_that_change_on_the_way_are_refused_and_sent_again(self, fake: Any, client: Client, body: bytes) -> None:
        fake.target.fail("PUT", corrupt_store=True)
        client.put("b", "x", body)
        assert fake.target.objects["b", "x"] == body

    def test_bytes_that_change_on_the_way_without_a_checksum(self, fake: Any, client: Client) -> None:
        fake.target.fail("PUT", corrupt_store=True)
        with pytest.raises(errors.ChecksumMismatch, match="deleted"):
            client.put("b", "x", iter([b"12345"]))
        assert fake.target.objects == {}

    def test_a_wrong_given_checksum(self, fake: Any, client: Client) -> None:
        with pytest.raises(errors.ChecksumMismatch):
            client.put("b", "x", b"1", checksum="0" * 32)
        assert len(fake.target.requests("PUT")) == 1

    def test_a_file_that_grows_meanwhile(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"1")
        source = make_source(path)
        path.write_bytes(b"12")
        with pytest.raises(errors.BadRequest, match="changed"):
            list(source.chunks())

    def test_a_precondition_that_the_own_earlier_try_broke(self, fake: Any, client: Client) -> None:
        fake.target.fail("PUT", done_first=True, hang_up=True)
        assert client.put("b", "x", b"1", if_none_match="*").checksum == checksum_of(b"1")
        with pytest.raises(errors.PreconditionFailed):
            client.put("b", "x", b"2", if_none_match="*")


class TestReads:
    def test_ranges_and_seeks(self, client: Client, body: bytes) -> None:
        client.put("b", "x", body)
        assert client.get("b", "x", start=10, length=20) == body[10:30]
        assert client.get("b", "x", start=len(body) - 5) == body[-5:]
        with client.open("b", "x") as reader:
            assert reader.info.size == len(body)
            assert reader.read(10) == body[:10]
            assert reader.seek(-7, io.SEEK_END) == len(body) - 7
            assert reader.read() == body[-7:]
            assert reader.seek(100) == reader.tell() == 100
            assert reader.read(4) == body[100:104]
            assert reader.read(0) == b""
        with pytest.raises(errors.RangeNotSatisfiable):
            client.get("b", "x", start=len(body))

    def test_an_empty_object(self, client: Client) -> None:
        client.put("b", "x", b"")
        assert client.get("b", "x") == b""
        with client.open("b", "x") as reader:
            assert reader.readinto(bytearray(10)) == 0

    def test_resumes_where_the_connection_broke(self, fake: Any, client: Client, body: bytes) -> None:
        client.put("b", "x", body)
        for cut in (1_000_000, 0, 700_000):
            fake.target.fail("GET", cut_after=cut)
        assert client.get("b", "x") == body
        ranges = [headers.get("range", "") for _, headers in fake.target.requests("GET", "objects")]
        assert ranges[0] == ""
        assert all(seen.startswith("bytes=") for seen in ranges[1:])
        assert len(ranges) == 4

    def test_does_not_mix_two_versions(self, fake: Any, client: Client, body: bytes) -> None:
        client.put("b", "x", body)
        with client.open("b", "x") as reader:
            fake.target.fail("GET", cut_after=0)
            assert reader.read(1000) == body[:1000]
            reader.seek(2000)
            fake.target.objects["b", "x"] = body[::-1]
            with pytest.raises(errors.PreconditionFailed, match="replaced"):
                reader.read(10)

    def test_a_flipped_bit_is_found(self, fake: Any, client: Client, body: bytes) -> None:
        client.put("b", "x", body)
        fake.target.fail("GET", corrupt=True)
        with client.open("b", "x") as reader, pytest.raises(errors.ChecksumMismatch):
            reader.read()
        fake.target.fail("GET", corrupt=True)
        assert client.get("b", "x") == body  # the second try is sound
        for _ in range(2):
            fake.target.fail("GET", corrupt=True)
        with pytest.raises(errors.ChecksumMismatch):
            client.get("b", "x")

    def test_gives_up_after_so_many_tries(self, fake: Any, client: Client, body: bytes) -> None:
        client.put("b", "x", body)
        for _ in range(50):
            fake.target.fail("GET", cut_after=0)
        with pytest.raises(errors.Unreachable):
            client.get("b", "x")
        assert len(fake.target.requests("GET", "objects")) == 1 + RetryPolicy().retries

    def test_missing(self, client: Client) -> None:
        for call in (client.get, client.stat, client.delete, client.open):
            with pytest.raises(errors.ObjectNotFound):
                call("b", "nothing")

    def test_stat(self, client: Client) -> None:
        client.put("b", "x", b"123")
        info = client.stat("b", "x")
        assert (info.size, info.etag, info.modified) == (3, checksum_of(b"123"), "2026-11-01T00:00:00Z")

    def test_an_early_close_leaves_the_client_usable(self, client: Client, body: bytes) -> None:
        client.put("b", "x", body)
        for _ in range(5):
            with client.open("b", "x") as reader:
                reader.read(1)
        assert client.get("b", "x") == body

    def test_connections_are_used_again(self, client: Client) -> None:
        client.put("b", "x", b"1")
        for _ in range(5):
            client.get("b", "x")
            client.stat("b", "x")
        assert len(client._transport._idle) == 1

    def test_a_kept_connection_that_died_is_replaced(self, fake: Any, client: Client) -> None:
        object.__setattr__(client._calls.policy, "retries", 0)
        client.put("b", "x", b"1")
        fake.target.fail("GET", hang_up=True)  # on the kept connection; what comes next gets a fresh one
        assert client.get("b", "x") == b"1"


class TestDelete:
    def test_delete(self, fake: Any, client: Client) -> None:
        client.put("b", "x", b"1")
        with pytest.raises(errors.PreconditionFailed):
            client.delete("b", "x", if_match="0" * 32)
        client.delete("b", "x", if_match=checksum_of(b"1"))
        assert fake.target.objects == {}

    def test_a_delete_whose_answer_was_lost_has_worked(self, fake: Any, client: Client) -> None:
        fake.target.objects["b", "x"] = b"1"
        client._router.map()
        fake.target.fail("DELETE", done_first=True, hang_up=True)
        client.delete("b", "x")
        assert fake.target.objects == {}


class TestCancellation:
    def test_abort_ends_transfers_of_other_threads(self, fake: Any, client: Client, body: bytes) -> None:
        client.put("b", "x", body)
        assert len(abort_a_read(client, fake.target)) == 1
        with pytest.raises(Cancelled):
            client.get("b", "x")


class TestPolicy:
    def test_delays_grow_and_stay_in_their_bounds(self) -> None:
        policy = RetryPolicy(random=random.Random(1))
        delays = [policy.delay_s(attempt, None) for attempt in range(policy.retries)]
        assert all(0.125 <= delay <= 4 for delay in delays)
        assert 6 <= sum(delays) <= 16
        assert policy.delay_s(0, 3.0) == 3.0
        assert policy.delay_s(0, 9999.0) == policy.retry_after_max_s


class TestErrors:
    def test_every_code_comes_back_as_its_class(self) -> None:
        def kinds(root: type[errors.DfcError]) -> Iterator[type[errors.DfcError]]:
            for child in root.__subclasses__():
                yield child
                yield from kinds(child)

        for kind in kinds(errors.DfcError):
            if "code" in kind.__dict__ and kind.__module__ == "dfc.errors":
                body = f'{{"error": {{"code": "{kind.code}", "message": "m"}}}}'.encode()
                error = error_from_answer(kind.status, {"Retry-After": "3"}, body, "GET /x")
                wanted = errors.BadRequest if kind is errors.ClientMistake else kind  # nobody raises the base
                assert (type(error), error.message, error.headers) == (wanted, "m", {"Retry-After": "3"})

    def test_answers_that_are_not_ours(self) -> None:
        assert isinstance(error_from_answer(502, {}, b"<html>", "GET /x"), errors.Unavailable)
        assert isinstance(error_from_answer(404, {}, b"", "HEAD /x"), errors.ObjectNotFound)
        assert isinstance(error_from_answer(418, {}, b"{}", "GET /x"), errors.BadRequest)
        assert "GET /x was answered with status 502" in str(error_from_answer(502, {}, b"", "GET /x"))
