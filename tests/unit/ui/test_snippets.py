"""Programs that read a dataset: whatever its names are, they are programs, and mean its shards."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from braceexpand import braceexpand
from hypothesis import given
from hypothesis import strategies as st

from dfc.listing.datasets import DatasetShards
from dfc.listing.specs import expand_url
from dfc.ui import words
from dfc.ui.datasetfacts import FieldFacts
from dfc.ui.snippets import ShardUrls, Snippet, asked_url, chosen_fields, command_line, literal, snippets

BASE = "http://dfc.test:8080"
TITLES = ["WebDataset", "PyTorch", "TensorFlow", "curl", "dfc get"]
PYTHON = TITLES[:3]


def field(ext: str, samples: int = 3, example: bytes = b"") -> FieldFacts:
    return FieldFacts(ext, samples, 1, 2, 4, example)


def made(urls: ShardUrls, fields: Sequence[FieldFacts] = (), *, wants_token: bool = False) -> dict[str, str]:
    found: list[Snippet] = snippets(urls, fields, 3, 100, wants_token=wants_token)
    assert [snippet.title for snippet in found] == TITLES
    return {snippet.title: snippet.text for snippet in found}


def dataset(pattern: str, numbers: Sequence[int]) -> DatasetShards:
    shards = DatasetShards(pattern)
    shards.add([(shards.names.name(number), 10, "0" * 32, 5, 3, 6) for number in numbers])
    shards.sort()
    return shards


def strings(text: str) -> list[Any]:
    return [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]


def from_curl(url: str) -> list[str]:
    """Expand ranges as curl does."""
    found = re.fullmatch(r"(.*)\[([0-9]+)-([0-9]+)\](.*)", url)
    if found is None:
        return [url]
    width = len(found[2])
    return [f"{found[1]}{number:0{width}d}{found[4]}" for number in range(int(found[2]), int(found[3]) + 1)]


NAMES = ["it's.tar", '"x".tar', "$(touch x)`y`.tar", "a{b,c}@3[0-9]*?.tar", "ä日\u202e %41.tar", "-rf;&|.tar", "dir/\\x.tar"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wants_token", [False, True])
def test_a_name_that_is_out_to_do_harm_is_a_name(name: str, wants_token: bool) -> None:
    texts = made(ShardUrls.of_shard(BASE, "b", name), [field("jpg"), field("cls")], wants_token=wants_token)
    for title in PYTHON:
        (given,) = [each for each in strings(texts[title]) if isinstance(each, str) and "/b/" in each]
        url = shlex.split(given.removeprefix("pipe:"))[-1]
        assert unquote(urlsplit(url).path) == f"/b/{name}"
        if not given.startswith("pipe:"):
            assert list(braceexpand(url)) == expand_url(url) == [url]
    for title, count in (("curl", 6 if wants_token else 4), ("dfc get", 4)):
        words_given = shlex.split(texts[title].strip(), comments=True)
        assert len(words_given) == count
        (url,) = [each for each in words_given if each.startswith(BASE)]
        assert unquote(urlsplit(url).path) == f"/b/{name}"
    for text in texts.values():
        assert words.visible(text) == text


@given(st.text(min_size=1), st.lists(st.text(), max_size=4))
def test_whatever_the_names_are_they_are_programs(name: str, exts: list[str]) -> None:
    name = name.encode("utf-8", "replace").decode()
    texts = made(ShardUrls.of_shard(BASE, "b", name), [field(ext) for ext in exts])
    for title in PYTHON:
        assert any(isinstance(each, str) and each.startswith(BASE) for each in strings(texts[title]))
    assert len(shlex.split(texts["curl"])) == 4
    assert all(words.visible(text) == text for text in texts.values())


@given(st.text())
def test_texts_in_python_are_what_they_were(text: str) -> None:
    assert ast.literal_eval(literal(text)) == text
    assert words.visible(literal(text)) == literal(text)


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("t-{000..003}.tar", [0, 1, 2, 3]),
        ("t-{000..012}.tar", [0, 1, 2, 5, 12]),
        ("t-{8..11}.tar", [8, 9, 10, 11]),
        ("t-{8..11}.tar", [8, 11]),
        ("a b'/{a}@2-{0..2}-of-03.tar.gz", [0, 2]),
    ],
)
def test_every_program_means_the_shards_that_are_there(pattern: str, numbers: list[int]) -> None:
    shards = dataset(pattern, numbers)
    names = [f"/b/{shards.name(at)}" for at in range(len(shards))]
    texts = made(ShardUrls.of_dataset(BASE, "b", shards))
    for title in PYTHON:
        (url,) = [each for each in strings(texts[title]) if isinstance(each, str) and each.startswith(BASE)]
        assert list(braceexpand(url)) == expand_url(url)
        assert [unquote(urlsplit(each).path) for each in expand_url(url)] == names
    given = [each for line in texts["curl"].splitlines() for each in shlex.split(line) if each.startswith(BASE)]
    assert [unquote(urlsplit(each).path) for url in given for each in from_curl(url)] == names
    got = [each for each in shlex.split(texts["dfc get"]) if each.startswith(BASE)]
    if "@" in pattern:  # each is named, and means itself
        assert [unquote(urlsplit(each).path) for each in got] == names
    else:
        assert [unquote(urlsplit(each).path) for url in got for each in expand_url(url)] == names


def test_with_many_gaps_programs_say_so() -> None:
    shards = dataset("t-{000..098}.tar", list(range(0, 100, 2)))
    texts = made(ShardUrls.of_dataset(BASE, "b", shards), [field("txt")])
    assert "# 49 numbers in this pattern are not there" in texts["WebDataset"]
    assert "warn_and_continue" in texts["WebDataset"]
    assert f"{BASE}/b/t-*.tar" in strings(texts["PyTorch"])
    assert shlex.split(texts["dfc get"]) == ["dfc", "get", f"{BASE}/b/t-*.tar", "./"]
    assert texts["curl"].startswith("# 49 of these numbers are not there.\n")


def chosen(*fields: FieldFacts) -> list[str]:
    return [";".join(each.ext for each in some) for some in chosen_fields(fields, 3)]


def test_a_picture_and_its_label_are_read_or_else_what_all_samples_have() -> None:
    assert chosen(field("json"), field("cls"), field("jpg")) == ["jpg", "cls"]
    assert chosen(field("cls"), field("jpg", 2), field("png", 1)) == ["jpg;png", "cls"]
    assert chosen(field("txt"), field("jpg")) == ["jpg", "txt"]
    assert chosen(field("txt"), field("json", 2), field("npy")) == ["txt", "npy"]
    assert chosen(field("jpg", 1), field("cls", 2)) == []
    assert chosen(field("pyd"), field("a;b"), field("a b"), field("__key__"), field("a\nb"), field("ok")) == ["ok"]


def test_decoders_are_those_of_the_fields() -> None:
    urls = ShardUrls.of_shard(BASE, "b", "x.tar")
    texts = made(urls, [field("jpg"), field("cls", example=b"7\n"), field("json")])
    assert '.decode("pil")' in texts["WebDataset"]
    assert ".to_tuple('jpg', 'cls')" in texts["WebDataset"]
    assert "decode='torchrgb8'" in texts["PyTorch"]
    assert "decode='rgb8'" in texts["TensorFlow"]
    texts = made(urls, [field("jpg"), field("cls", example=b"cat")])
    assert ".decode(\"pil\", only=['jpg'])" in texts["WebDataset"]
    assert "decode={'cls': False, '*': 'torchrgb8'}" in texts["PyTorch"]
    texts = made(urls, [field("txt"), field("pkl")])
    assert ".decode(only=['txt'])" in texts["WebDataset"], "a pickle would run what is in it"
    assert "decode=True" in texts["PyTorch"]
    assert "collate=list" in made(urls, [field("txt", 1)])["PyTorch"]


def test_a_token_is_a_variable_and_only_where_reading_needs_it() -> None:
    urls = ShardUrls.of_shard(BASE, "b", "x.tar")
    for title, text in made(urls, [field("txt")]).items():
        assert "TOKEN" not in text.upper(), title
    texts = made(urls, [field("txt")], wants_token=True)
    for title in ("WebDataset", "curl"):
        assert '"Authorization: Bearer $DFC_TOKEN"' in texts[title]
    for title in ("PyTorch", "TensorFlow"):
        assert f"options=StreamOptions(cluster='{BASE}')" in texts[title]


def test_the_address_is_the_one_that_the_browser_asked_for() -> None:
    def asked(authority: str | None, forwarded: str = "") -> str:
        found: Any = SimpleNamespace(authority=authority, headers={"X-Forwarded-Proto": forwarded})
        return asked_url(found)

    assert asked("dfc.test:8080") == "http://dfc.test:8080"
    assert asked("dfc.test", forwarded="https") == "https://dfc.test"
    assert asked("dfc.test", forwarded="javascript") == "http://dfc.test"
    assert asked(None) == "http://127.0.0.1:8080"
    texts = made(ShardUrls.of_shard("http://[::1]:8080", "b", "x.tar"), [field("txt")])
    assert "list(braceexpand(url))" in texts["WebDataset"], "WebDataset cuts URLs at two colons"


TOKEN_SENT = '-H "Authorization: Bearer $DFC_TOKEN"'


@pytest.mark.parametrize(
    ("line", "writes", "reads", "shown"),
    [
        ("curl $DFC_URL/v1/jobs", False, False, f"curl {BASE}/v1/jobs"),
        ("curl '$DFC_URL/b/x%24DFC'", True, False, f"curl '{BASE}/b/x%24DFC'"),
        ("curl $DFC_URL/v1/jobs", True, True, f"curl {BASE}/v1/jobs {TOKEN_SENT}"),
        (f"curl -T FILE $DFC_URL/b/x {TOKEN_SENT}", False, False, f"curl -T FILE {BASE}/b/x"),
        (f"curl -T FILE $DFC_URL/b/x {TOKEN_SENT}", True, True, f"curl -T FILE {BASE}/b/x {TOKEN_SENT}"),
        ("dfc job ls", True, True, f"DFC_URL={BASE} dfc job ls"),
        ("find F | tarshards -T - $DFC_URL/b/x-%06d.tar", True, True, f"find F | tarshards -T - {BASE}/b/x-%06d.tar"),
    ],
)
def test_lines_for_a_shell_have_the_address_and_the_token_only_where_it_is_wanted(
    line: str, writes: bool, reads: bool, shown: str
) -> None:
    assert command_line(line, BASE, writes_want_token=writes, reads_want_token=reads) == shown


def test_dfc_finds_the_cluster_of_this_machine_by_itself() -> None:
    assert command_line("dfc job ls", "http://localhost:8080", writes_want_token=False, reads_want_token=False) == "dfc job ls"
