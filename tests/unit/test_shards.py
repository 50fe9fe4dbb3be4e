"""Shard specs: counts, braces, globs and prefixes, compared with bash and fnmatch where they agree."""

from __future__ import annotations

import fnmatch
import json
import time
import tracemalloc
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.errors import BadShardSpec
from dfc.limits import SHARD_LIST_CHARS_MAX, SHARD_SPEC_NAMES_MAX
from dfc.listing.specs import Glob, Prefix, check, expand, expand_url, is_plain, list_specs


def test_a_list_passes_through_unchanged() -> None:
    names = ["b-@3.tar", "a-{1,2}.tar", "c*.tar", "d/"]
    assert expand(names) == names


def test_a_list_as_text_is_json() -> None:
    assert expand('["b-@3.tar", "a{1,2}"]') == ["b-@3.tar", "a{1,2}"]
    for text in ('["a"', '["a", 1]', '["a"]x', '["a", ""]'):
        with pytest.raises(BadShardSpec):
            expand(text)


def test_count_is_a_count_and_keeps_its_width() -> None:
    names = expand("imagenet-@001000.tgz")
    assert isinstance(names, list)
    assert len(names) == 1000
    assert (names[0], names[-1]) == ("imagenet-000000.tgz", "imagenet-000999.tgz")


def test_the_last_count_wins() -> None:
    assert expand("a@2-@2.tar") == ["a@2-0.tar", "a@2-1.tar"]


def test_count_is_expanded_before_braces() -> None:
    assert expand("{x,y}-@02.{a,b}") == ["x-00.a", "x-00.b", "y-00.a", "y-00.b", "x-01.a", "x-01.b", "y-01.a", "y-01.b"]


def _is_refused(call: Callable[[str], object], spec: str) -> None:
    with pytest.raises(BadShardSpec):
        call(spec)


def _peak_bytes(call: Callable[[], object]) -> int:
    """What a call allocates at its worst moment."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("train-{0098..0101}.tar", "train-0098.tar train-0099.tar train-0100.tar train-0101.tar"),
        ("{a,b{1,2}}{x,y}", "ax ay b1x b1y b2x b2y"),
        ("{0..10..3}", "0 3 6 9"),
        ("{10..0..4}", "10 6 2"),
        ("{-02..2}", "-02 -01 000 001 002"),
        ("{c..a}", "c b a"),
        ("{a,}x", "ax x"),
        ("{a}", "{a}"),
        ("{}", "{}"),
        ("x{1..3}y{a..b}z", "x1yaz x1ybz x2yaz x2ybz x3yaz x3ybz"),
        ("{{1..2},{a,b}}", "1 2 a b"),
        ("{08..11}", "08 09 10 11"),
        ("a{{b}}c", "a{{b}}c"),
        ("{1..2}{3..4}", "13 14 23 24"),
    ],
)
def test_braces_are_those_of_bash(spec: str, names: str) -> None:
    """The names are what `printf '%s ' SPEC` printed in bash 5.2."""
    assert expand(spec) == names.split(" ")


@pytest.mark.parametrize("spec", ["", "{a", "a}", "{a,{b}", "x@0.tar", "{1..5..0}", "{a@3,b}", "{" * 40 + "a,b" + "}" * 40])
def test_what_cannot_be_read_is_refused(spec: str) -> None:
    with pytest.raises(BadShardSpec):
        expand(spec)


@pytest.mark.parametrize(
    "spec",
    [
        f"@{SHARD_SPEC_NAMES_MAX + 1}", "{1..1000}{1..1000}{1..2}", "@9999999999999999999999999", "{1..999999999999999}",
        "{{1..1000000},{1..1000000}}", "a" * 1000 + "@1000000", "{" + ",".join(["a"] * 20000) + "}" + "{1..100}", "x" * 100_000,
    ],
)  # fmt: skip
def test_too_many_names_are_refused_at_once(spec: str) -> None:
    for refuse in (expand, check):
        assert _peak_bytes(lambda refuse=refuse: _is_refused(refuse, spec)) < 16 << 20


def test_checking_builds_nothing() -> None:
    for spec in ("@1000000", "{1..1000}{1..1000}", "{{1..500000},{1..500000}}", ["a"], '["a"]', "x/", "*"):
        assert _peak_bytes(lambda spec=spec: check(spec)) < 1 << 20


def test_prefix() -> None:
    prefix = expand("imagenet/train/")
    assert prefix == Prefix("imagenet/train/")
    assert prefix.matches("imagenet/train/x/y.tar")
    assert not prefix.matches("imagenet/trains")


def test_glob_stays_within_a_segment() -> None:
    glob = expand("train-*.tar")
    assert isinstance(glob, Glob)
    assert glob.prefix == "train-"
    assert glob.matches("train-000001.tar")
    assert not glob.matches("train-x/y.tar")
    assert not glob.matches("xtrain-0.tar")
    assert not glob.matches("train-0.tar.gz")


def test_glob_with_braces_and_prefixes() -> None:
    glob = expand("set/{train-*.tar,val/,one.tar}")
    assert isinstance(glob, Glob)
    assert glob.prefix == "set/"
    assert all(map(glob.matches, ("set/train-1.tar", "set/val/a/b", "set/one.tar")))
    assert not any(map(glob.matches, ("set/two.tar", "set/val")))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("**/x.tar", ["x.tar", "a/x.tar", "a/b/x.tar"], ["ax.tar", "a/xx.tar"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a/c"]),
        ("a/**/b*c", ["a/bc", "a/x/b/y/bc", "a/bxxc"], ["a/x/b/y", "abc"]),
        ("**/a/**/b", ["a/b", "x/a/b", "x/a/y/z/b", "a/a/b"], ["a/bb", "b/a"]),
        ("[!a-c]?.tar", ["dx.tar"], ["ax.tar", "d/.tar", "/x.tar"]),
        ("[]x]*", ["]1", "x"], ["y"]),
        ("a[z-a]*", [], ["ab", "az"]),
        ("a[b*", ["a[b", "a[bc"], ["ab"]),
        ("*a*b*", ["ab", "xaxbx", "aab"], ["ba", "a/b"]),
        ("[*]x?", ["*xy"], ["axy"]),
    ],
)
def test_glob_cases(pattern: str, yes: list[str], no: list[str]) -> None:
    glob = expand(pattern)
    assert isinstance(glob, Glob)
    assert [name for name in yes if not glob.matches(name)] == []
    assert [name for name in no if glob.matches(name)] == []


@given(pattern=st.text("ab*?", min_size=1, max_size=8), name=st.text("ab", max_size=8))
def test_globs_of_one_segment_agree_with_fnmatch(pattern: str, name: str) -> None:
    if "**" in pattern and pattern != "**":
        pattern = pattern.replace("**", "*")
    if pattern == "**":
        return
    assert Glob((pattern,)).matches(name) == fnmatch.fnmatchcase(name, pattern)


def test_a_hostile_glob_is_no_slower() -> None:
    glob = Glob(("a*" * 60 + "b", "**/a/" * 30 + "b"))
    start = time.thread_time()
    assert not glob.matches("a" * 1000)
    assert not glob.matches("a/" * 500 + "c")
    assert time.thread_time() - start < 20  # a backtracking matcher would not end in this universe's time


def test_only_the_path_of_a_url_is_expanded() -> None:
    assert expand_url("http://user@10.0.0.1/a%20b-@02.tar?x=@3") == [
        "http://user@10.0.0.1/a%20b-00.tar?x=@3",
        "http://user@10.0.0.1/a%20b-01.tar?x=@3",
    ]
    assert expand_url("http://host") == ["http://host"]
    assert expand_url("set/{a,b}.tar") == ["set/a.tar", "set/b.tar"]
    assert expand_url("http://h/x?y={1,2}") == ["http://h/x?y={1,2}"]


def test_plain_names() -> None:
    assert is_plain("a/b@x.tar")
    assert not any(map(is_plain, ["a@3", "a*", "a?", "a[b", "a{b,c}", "a/"]))


@given(st.lists(st.text(max_size=300), max_size=300))
def test_a_long_list_becomes_several_specs_that_name_the_same(names: list[str]) -> None:
    specs = list(list_specs(names))
    assert [name for spec in specs for name in json.loads(spec)] == names
    for spec in specs:
        costs = [len(quote(name)) + 9 for name in json.loads(spec)]
        assert len(costs) == 1 or sum(costs) <= SHARD_LIST_CHARS_MAX
