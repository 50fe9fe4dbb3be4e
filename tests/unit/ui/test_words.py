"""How values are shown; characters that cannot be seen are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment

from dfc.ui import words
from dfc.ui.pages.jobs import FOLLOWED_MAX, shape_with
from dfc.ui.plots import Figures
from dfc.wire.jobs import Job


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99, "99 s"), (120, "2 min"), (5999, "100 min"), (7200, "2.0 h"), (864000, "10 d")]
)
def test_times(seconds: float, text: str) -> None:
    assert words.seconds(seconds) == text


def test_numbers_and_shares() -> None:
    assert words.count(1234567) == "1\u202f234\u202f567"
    assert words.count(None) == words.percent(1, 0) == ""
    assert words.percent(1, 3) == "33 %"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("photo\u202egpj.exe", "photo⟨202E⟩gpj.exe"),
        ("a\u200bb\ufeff", "a⟨200B⟩b⟨FEFF⟩"),
        ("bell\x07\x1b[31m", "bell⟨0007⟩⟨001B⟩[31m"),
        ("\U000e0041\ud800", "⟨E0041⟩⟨D800⟩"),
        ("line\nand\ttab", "line\nand\ttab"),
        ("äöü 日本 🙂 \u202f", "äöü 日本 🙂 \u202f"),
    ],
)
def test_what_cannot_be_seen_is_shown(text: str, shown: str) -> None:
    assert words.visible(text) == shown


@given(st.text())
def test_whatever_a_template_prints_is_visible_and_no_markup(text: str) -> None:
    environment = Environment(autoescape=True, finalize=words.finalize)
    shown = environment.from_string("<p title='{{ text }}'>{{ text }}</p>").render(text=text)
    inside = shown.removeprefix("<p title='").removesuffix("</p>")
    assert not set(inside) & {'"', "\u202e", "\x00", "\x1b"}
    assert inside.count("<") == 0
    assert inside.count("'") == 1
    assert inside.count(">") == 1
    shown.encode()


def test_a_job_that_is_not_in_the_figures_yet_has_its_page_rendered_anew() -> None:
    """It may begin and end between two of them, and no later one would say so."""
    figures = Figures("s1", {"job.a.done": "5 %"})
    jobs = [Job(id="a", operation="map", state="running"), Job(id="z", operation="map", state="succeeded")]
    later = Job(id="b", operation="map", state="queued")
    assert shape_with(jobs, figures) == "s1"
    assert shape_with([later, *jobs], figures) == ""
    many = jobs[:1] * FOLLOWED_MAX
    assert shape_with([*many, later], figures) == "s1", "the figures never have more"
