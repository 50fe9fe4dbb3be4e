"""When `dfc serve` says that it is ready."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from odd_server import Asked, Goodbye, OddServer

from dfc import supervisor
from dfc.supervisor import Child, ServeOptions, Supervisor


def node(says: Sequence[dict[str, str] | None]) -> OddServer:
    """Says one thing after the other of its health, the last one for ever; 503 for None."""

    def answer(asked: Asked) -> Iterator[bytes]:
        said = says[min(asked.number, len(says) - 1)]
        body = json.dumps(said).encode()
        yield b"HTTP/1.1 %d .\r\nContent-Length: %d\r\n\r\n" % (503 if said is None else 200, len(body))
        yield body
        raise Goodbye

    return OddServer(answer)


@pytest.mark.parametrize(
    ("proxy", "states", "asked"),
    [
        ([{}], ["up"], 1),
        ([None, {}], ["up"], 2),
        ([{}], ["joining", "down", "up"], 3),
        ([{}], ["draining"], 1),
        ([{}], ["down"], 0),
        ([None], ["up"], 0),
    ],
)
async def test_it_is_ready_when_all_targets_are_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: list[dict[str, str] | None], states: list[str], asked: int
) -> None:
    """Or when a while has passed, if the proxy is."""
    monkeypatch.setattr(supervisor, "READY_TIMEOUT_S", 10.0 if asked else 0.3)
    monkeypatch.setattr(supervisor, "SAY_LATE_S", 5.0 if asked else 0.1)
    told = list[str]()
    serving = Supervisor(ServeOptions(str(tmp_path)), told.append)
    with node(proxy) as first, node([{"state": each} for each in states]) as second:
        serving._children = [
            Child(name, "", [], "127.0.0.1", urlsplit(each.url).port or 0) for name, each in (("proxy", first), ("t", second))
        ]
        await serving._wait_healthy()
        assert not asked or len(first.asked) == len(second.asked) == asked
    assert bool(serving._fatal) is (proxy[-1] is None)
    assert [line.partition(" (")[0] for line in told] == (
        [] if asked else [f"waiting for {'proxy' if proxy[-1] is None else 't'}"]
    )
