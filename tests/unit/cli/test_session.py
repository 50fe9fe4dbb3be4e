"""What commands share."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dfc.client
from dfc.cli.session import Session, cell
from dfc.errors import NotFound, Unreachable

THREADS = 8


def test_threads_that_ask_at_once_share_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody knows of would be neither ended by Ctrl-C nor closed."""
    made = []

    class SlowClient(dfc.client.Client):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            time.sleep(0.05)  # others come meanwhile
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(dfc.client, "Client", SlowClient)
    session, together = Session(), threading.Barrier(THREADS)

    def ask(_: int) -> dfc.client.Client:
        together.wait(10)
        return session.client("http://127.0.0.1:9")

    with ThreadPoolExecutor(THREADS) as pool:
        assert set(pool.map(ask, range(THREADS))) == set(made)
    assert len(made) == 1
    session.close()


def test_who_cannot_be_reached_without_an_address_is_told_that_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for url in (None, "http://127.0.0.1:1"):
        session = Session(url)
        session.client()
        session.print_error(Unreachable("no answer"))
        session.print_error(NotFound("not there"))
        session.close()
    assert capsys.readouterr().err.splitlines() == [
        "dfc: no answer (is the proxy running? DFC_URL is not set)",
        "dfc: not there",
        "dfc: no answer",
        "dfc: not there",
    ]


def test_the_token_goes_to_each_address_of_the_cluster_and_nowhere_else() -> None:
    session, free = Session("http://one:1, http://two:2/", "secret"), Session(None, "secret")
    for base in (None, "http://one:1", "http://two:2"):
        assert session.client(base)._calls._token == "secret"
    for base in ("http://two:3", "http://tw:2"):
        assert session.client(base)._calls._token is None
    assert free.client("http://typed")._calls._token == "secret"
    session.close()
    free.close()


ODD = "a\nb\tc\x1b[31m\x9b0m\x85\u2028d\u202ee"


def test_a_key_is_one_field_of_one_line() -> None:
    assert cell("plain ä/0001") == "plain ä/0001"
    assert len(cell(ODD).splitlines()) == 1
    assert "\t" not in cell(ODD)
    assert cell("a\nb") == "a<0A>b"


def test_a_terminal_obeys_nothing_of_what_others_have_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    out, error = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", error)
    assert cell(ODD).isprintable()
    Session().print_json({"key": ODD})
    assert json.loads(out.getvalue()) == {"key": ODD}
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", out.getvalue())
    Session().note(f"{ODD}\nand more")
    Session().print_error(NotFound(ODD), ODD)
    assert all(line.isprintable() for line in error.getvalue().splitlines())
    assert len(error.getvalue().splitlines()) == 6


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
