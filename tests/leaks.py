"""What a test leaves behind and nobody looks at: errors of tasks that were never retrieved, tasks destroyed in mid-work, and
sockets and files that only the garbage collector closes. They fail the test at whose end they are found."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Iterator
from typing import Any

import pytest

# What Python says of errors that it can raise nowhere, and asyncio and aiohttp of what was left alone.
SAID = re.compile(
    r"never retrieved|was destroyed but it is pending|was never awaited|Exception ignored in|Exception in thread"
    r"|Exception in callback|Unclosed (?:client session|connector|connection|response)|ResourceWarning: unclosed"
)


_make_transport = BaseSelectorEventLoop._make_socket_transport  # type: ignore[attr-defined]


def _make(self: object, sock: Any, *given: Any, server: asyncio.Server | None = None, **more: Any) -> object:
    """asyncio leaks a connection that it accepted in the very turn in which its server was closed: here it is closed, too."""
    if server is not None and not server.sockets:
        sock.close()
        raise ConnectionAbortedError
    return _make_transport(self, sock, *given, server=server, **more)


BaseSelectorEventLoop._make_socket_transport = _make  # type: ignore[attr-defined]


class _Kept(logging.Handler):
    """The records of a logger."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def lines(self) -> list[str]:
        form = logging.Formatter("%(message)s")
        return [form.format(record) for record in self.records]


@pytest.fixture(autouse=True)
def leaks(leaks_of_module: None) -> Iterator[_Kept]:
    """asyncio tells its logger what nobody asked for; warnings in finalizers are pytest's to raise (`filterwarnings`)."""
    kept, logger = _Kept(), logging.getLogger("asyncio")
    logger.addHandler(kept)
    try:
        yield kept
        gc.collect()
    finally:
        logger.removeHandler(kept)
    assert not kept.records, "asyncio has logged errors:\n" + "\n".join(kept.lines())


@pytest.fixture(autouse=True, scope="module")
def leaks_of_module() -> Iterator[None]:
    """What fixtures of a module have left is looked at when the module ends. What was there before it is frozen: hundreds of
    thousands of objects of libraries, which the collection at the end of each test then need not walk through."""
    gc.freeze()
    yield
    gc.collect()
