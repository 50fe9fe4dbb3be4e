"""The other ends of connections."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from scripted_node import Upstream


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A node that does what the test says."""
    async with Upstream() as node:
        yield node


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours, and the other one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname(), timeout=30)
        theirs, _ = listener.accept()
        theirs.settimeout(30)
    with ours, theirs:
        yield ours, theirs
