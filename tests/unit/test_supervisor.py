"""When `dfc serve` says that it is ready."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from odd_server import Asked, Goodbye, OddServer

from dfc import supervisor
from dfc.supervisor import Child, ServeOptions, Supervisor


def node(says: list[dict[str, str] | None]) -> OddServer:
    """Says one thing after the other of its health, the last one for ever; 503 for None."""

    def answer(asked: Asked) -> Iterator[bytes]:
        said = says[min(asked.number, len(says) - 1)]
        body = json.dumps(said).encode()
        yield b"HTTP/1.1 %d .\r\nContent-Length: %d\r\n\r\n" % (503 if said is None else 200, len(body))
        yield body
        raise Goodbye

    return OddServer(answer)


UP, DOWN, JOINING = {"state": "up"}, {"state": "down"}, {"state": "joining"}


@pytest.mark.parametrize(
    ("proxy", "target", "asked", "fatal"),
    [
        ([{}], [UP], 1, False),
        ([None, {}], [UP], 2, False),
        ([{}], [JOINING, DOWN, UP], 3, False),
        ([{}], [{"state": "draining"}], 1, False),
        ([{}], [DOWN], 0, False),
        ([None], [UP], 0, True),
    ],
)
async def test_it_is_ready_when_all_targets_are_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    proxy: list[dict[str, str] | None],
    target: list[dict[str, str]],
    asked: int,
    fatal: bool,
) -> None:
    """Or when a while has passed, if the proxy is."""
    monkeypatch.setattr(supervisor, "READY_TIMEOUT_S", 0.3 if not asked else 10.0)
    serving = Supervisor(ServeOptions(str(tmp_path)))
    with ExitStack() as stack:
        nodes = [stack.enter_context(node(says)) for says in (proxy, list(target))]
        ports = [urlsplit(each.url).port or 0 for each in nodes]
        serving._children = [
            Child(name, "", [], "127.0.0.1", port) for name, port in zip(("proxy", "target-0"), ports, strict=True)
        ]
        await serving._wait_healthy()
        if asked:
            assert len(nodes[0].asked) == len(nodes[1].asked) == asked
    assert bool(serving._fatal) is fatal
