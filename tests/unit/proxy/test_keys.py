"""*List keys* asks all targets by one step of placement."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from registering import target_entry
from scripted_node import Upstream

from dfc.errors import Unavailable
from dfc.http.peer import ControlClient
from dfc.http.retry import RemoteError
from dfc.placement.map import BucketEntry, ClusterMap, NodeEntry
from dfc.proxy import objects
from dfc.proxy.objects import SampleKeys


class Stream:
    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class FakeCluster:
    """Two targets; the second one is a step ahead of the proxy at first, or does not answer."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.map = ClusterMap(cluster_id="c", version=1, step=3)
        self.control = self
        self.opened: list[Stream] = []
        self._failure = failure

    def bucket(self, name: str) -> BucketEntry:
        return BucketEntry(id="b1", name=name)

    def targets_of(self, bucket_id: str, by: ClusterMap) -> list[NodeEntry]:
        assert (bucket_id, by) == ("b1", self.map)
        return [target_entry(f"t{number}", number) for number in (1, 2)]

    async def open_stream(self, url: str, *, stall_s: float) -> Stream:
        assert f"&step={self.map.step}" in url
        if url.startswith("http://t2"):
            if self._failure is not None:
                raise self._failure
            if self.map.step < 5:
                self.map = msgspec.structs.replace(self.map, step=self.map.step + 1, version=self.map.version + 1)
                raise RemoteError(503, b'{"error": {"code": "map_changing", "message": "at step 4"}}', url)
        self.opened.append(Stream())
        return self.opened[-1]


async def test_all_are_asked_again_when_one_is_at_another_step(monkeypatch):
    monkeypatch.setattr(objects, "STEP_S", 0.001)
    cluster = FakeCluster()
    lines = await SampleKeys(cluster).open("in")  # type: ignore[arg-type]
    assert [stream.is_closed for stream in cluster.opened] == [True, True, False, False]
    lines.close()
    assert all(stream.is_closed for stream in cluster.opened)


async def test_what_was_opened_is_closed_when_another_target_fails():
    cluster = FakeCluster(Unavailable("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await SampleKeys(cluster).open("in")  # type: ignore[arg-type]
    assert [stream.is_closed for stream in cluster.opened] == [True]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [(b"{}\n[]\n", b"{}\n[]\n"), (b"\n{}\n", b"{}\n"), (b"{}\n\n\n[]\n\n", b"{}\n[]\n"), (b"{}\n\n", b"{}\n")],
)
def test_signs_of_a_target_that_is_still_looking_are_not_shown(sent: bytes, shown: bytes) -> None:
    assert objects._without_signs(sent) == shown


async def test_a_target_that_falls_silent_ends_the_stream(monkeypatch):
    """Whoever lists keys holds room at the proxy, which a target that hangs would take from all others."""
    monkeypatch.setattr(objects, "NODE_LIST_STALL_S", 0.3)
    cluster = FakeCluster()

    async def stalls(reader, writer):
        await node.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        for sign in (b"\n", b"\n", b"\n", b"{}\n"):  # it is looking, for longer than it may be silent
            await asyncio.sleep(0.2)
            writer.write(sign)
        await node.over.wait()

    async with Upstream() as node, asyncio.timeout(20):
        node.scripts = [stalls]
        (entry, _) = cluster.targets_of("b1", cluster.map)
        cluster.targets_of = lambda *_: [msgspec.structs.replace(entry, url=node.url)]  # type: ignore[method-assign]
        cluster.control = ControlClient("", 5.0)  # type: ignore[assignment]
        lines = await SampleKeys(cluster).open("in")  # type: ignore[arg-type]
        pieces = lines.pieces()
        assert await anext(pieces) == b"{}\n"
        with pytest.raises(Unavailable, match="broke off"):
            await anext(pieces)
        lines.close()
        await cluster.control.close()  # type: ignore[attr-defined]
