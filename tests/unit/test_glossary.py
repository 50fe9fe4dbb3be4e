"""The glossary is sorted, says each word once, and knows every class of the product that is called like a word of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+?) \| (.*?) ?\| (.*?) ?\|$", re.MULTILINE)
# Classes that mean something else than the word they are called by, with the package each is in. One too many each: the list
# may only shrink.
OTHER_MEANINGS = {
    ("Commit", "proxy"),
    ("Group", "formats"),
    ("Row", "jobs"),
    ("Slice", "tar"),
    ("Stage", "inputs"),
    ("Staged", "proxy"),
    ("Target", "jobs"),
}


class Entry(NamedTuple):
    word: str
    meaning: str
    places: list[str]

    @property
    def class_name(self) -> str:
        return "".join(part.capitalize() for part in self.word.split())


def entries() -> list[Entry]:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    return [Entry(word, meaning, re.findall(r"`([\w.]+)`", places)) for word, meaning, _, places in ROW.findall(text)]


def classes() -> Iterator[tuple[str, str]]:
    """Name and module of every public class of the product."""
    for path in sorted((ROOT / "dfc").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, module


ENTRIES = entries()


def test_the_whole_page_is_read() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert len(ENTRIES) == sum(line.startswith("|") for line in text.splitlines()) - 2 > 40


def test_words_are_sorted_and_unique() -> None:
    words = [entry.word for entry in ENTRIES]
    assert words == sorted(set(words))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.word)
def test_an_entry_is_short_and_leads_to_its_class(entry: Entry) -> None:
    assert entry.meaning.endswith(".")
    assert len(re.findall(r"\.(?: |$)", entry.meaning)) <= 2, "one or two sentences"
    for place in entry.places:
        module, _, name = place.rpartition(".")
        assert name == entry.class_name
        assert getattr(import_module(module), name).__module__ == module


def test_every_class_that_is_called_like_a_word_is_in_its_entry() -> None:
    listed = {entry.class_name: set(entry.places) for entry in ENTRIES}
    others = set()
    for name, module in classes():
        if name in listed and f"{module}.{name}" not in listed[name]:
            others.add((name, module.split(".")[1]))
    assert others == OTHER_MEANINGS
