"""Fixtures: the programs run in this process against fake nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fake_node import FakeCluster, FakeNode, fake_cluster

from dfc.cli import main, tarshards
from dfc.http import retry


@dataclass
class Ran:
    """How a program ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A fake cluster, the one of DFC_URL; waits between tries are short."""
    made = fake_cluster(FakeNode(), FakeNode("target"))
    monkeypatch.setenv("DFC_URL", made.url)
    monkeypatch.delenv("DFC_TOKEN", raising=False)
    monkeypatch.setattr(retry.RetryPolicy, "delay_s", lambda self, attempt, retry_after_s: 0.001)
    yield made
    made.proxy.stop()
    made.target.stop()


def _run(app: Any, name: str, arguments: tuple[object, ...], capfd: pytest.CaptureFixture[str]) -> Ran:
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        app(args=[str(argument) for argument in arguments], prog_name=name)
    out, err = capfd.readouterr()
    return Ran(int(ended.value.code or 0), out, err)


@pytest.fixture
def dfc(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `dfc` with arguments."""
    return lambda *arguments: _run(main.app, "dfc", arguments, capfd)


@pytest.fixture
def shard_program(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `tarshards` with arguments; standard input is replaced by the test."""
    return lambda *arguments: _run(tarshards.app, "tarshards", arguments, capfd)
