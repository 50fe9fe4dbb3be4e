"""Joined datasets: fields from shards and tables, by key, whatever fits into memory."""

from __future__ import annotations

import importlib
import io
from pathlib import Path

import pytest
from folder_store import run_job
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_shards import job, members_of, put, samples

from dfc.errors import BadName, BadRequest, BadShardSpec
from dfc.formats.base import FormatError, SplitSample
from dfc.jobs.data.partitions import DuplicateKey
from dfc.jobs.operations.join import FieldOnBothSides

DATA = Path(__file__).parents[3] / "data"


def joined(folder, pattern="j-%03d.tar", other="**", twice=False, memory_bytes=64 << 20, **options):
    spec = job("join", pattern, **{"with": {"bucket": "other", "shards": other}, **options})
    return run_job(folder, spec, twice=twice, memory_bytes=memory_bytes)


def members(done):
    return [member for output in sorted(done.outputs) for member in members_of(done.outputs[output])]


def test_inner_and_left(tmp_path):
    put(tmp_path, "a.tar", samples("cab", jpg="{key}"))
    put(tmp_path, "b.tgz", samples("xd", jpg="{key}"))
    put(tmp_path, "c.tar", [])
    put(tmp_path, "1.tar", samples("ab", cls="{number}"), "other")
    put(tmp_path, "2.tgz", samples("zd", cls="{number}", txt="t"), "other")
    done = joined(tmp_path, twice=True)
    assert {name: members_of(content) for name, content in done.outputs.items()} == {
        "j-000.tar": [("a.jpg", b"a"), ("a.cls", b"0"), ("b.jpg", b"b"), ("b.cls", b"1")],
        "j-001.tar": [("d.jpg", b"d"), ("d.cls", b"1"), ("d.txt", b"t")],
        "j-002.tar": [],
    }
    done = joined(tmp_path, how="left", twice=True)
    wanted = ["c.jpg", "a.jpg", "a.cls", "b.jpg", "b.cls", "x.jpg", "d.jpg", "d.cls", "d.txt"]
    assert [name for name, _ in members(done)] == wanted


TABLES = {
    "t.csv": b'\xef\xbb\xbf__key__,Label,text\r\na,1,"one, ""two""\nthree"\r\n\r\nd/b,,\xc3\xa4\r\n',
    "t.tsv": '__key__\tLabel\ttext\na\t1\t"one, ""two""\nthree"\nd/b\t\tä\n'.encode(),
    "t.jsonl": b'{"__key__": "a", "Label": "1", "text": "one, \\"two\\"\\nthree"}\n\n'
    + '{"Label": "", "text": "ä", "__key__": "d/b"}'.encode(),
}


@pytest.mark.parametrize("name", TABLES)
def test_columns_become_fields(tmp_path, name):
    put(tmp_path, "a.tar", samples(["a", "d/b", "c"], jpg="x"))
    put(tmp_path, name, TABLES[name], "other")
    assert members(joined(tmp_path, twice=True)) == [
        ("a.jpg", b"x"), ("a.label", b"1"), ("a.text", b'one, "two"\nthree'),
        ("d/b.jpg", b"x"), ("d/b.label", b""), ("d/b.text", "ä".encode()),
    ]  # fmt: skip


def test_values_of_json_lines(tmp_path):
    put(tmp_path, "a.tar", samples(["7"], jpg="x"))
    put(tmp_path, "t.ndjson", b'{"id": 7, "n": 1.5, "l": [1, {"a": null}], "none": null, "b": true}\n', "other")
    assert members(joined(tmp_path, key="id"))[1:] == [("7.n", b"1.5"), ("7.l", b'[1,{"a":null}]'), ("7.b", b"true")]


def test_parquet(tmp_path):
    arrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    columns = {"name": ["a", "b"], "cls": [1, None], "txt": ["t", "u"], "raw": [b"\x00", b""]}
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(columns), buffer)
    put(tmp_path, "a.tar", samples("ab", jpg="x"))
    put(tmp_path, "t.parquet", buffer.getvalue(), "other")
    assert members(joined(tmp_path, key="name", twice=True)) == [
        ("a.jpg", b"x"), ("a.cls", b"1"), ("a.txt", b"t"), ("a.raw", b"\x00"),
        ("b.jpg", b"x"), ("b.txt", b"u"), ("b.raw", b""),
    ]  # fmt: skip
    with pytest.raises(FormatError, match="no column '__key__'"):
        joined(tmp_path)


@given(st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_memory_gives_the_same_as_a_dict(tmp_path_factory, data):
    tmp_path = tmp_path_factory.mktemp("join")
    keys = st.lists(st.integers(0, 60).map(lambda n: f"{n:03d}"), unique=True, max_size=40)
    lefts, rights = data.draw(st.lists(keys, min_size=1, max_size=3)), data.draw(st.lists(keys, min_size=1, max_size=3))
    how, duplicate = data.draw(st.sampled_from(["inner", "left"])), data.draw(st.sampled_from(["first", "last"]))
    memory = data.draw(st.sampled_from([64 << 20, 30_000, 3_000]))
    for number, left in enumerate(lefts):
        put(tmp_path, f"{number}.tar", samples(left, jpg="{key}"))
    known = {}
    for number, right in enumerate(rights):
        put(tmp_path, f"{number}.tar", samples(right, cls=f"{number}" * 200), "other")
        for key in right:
            if duplicate == "last" or key not in known:
                known[key] = f"{number}".encode() * 200
    expected = []
    for left in lefts:
        for key in left:
            if key in known or how == "left":
                expected.append((f"{key}.jpg", key.encode()))
            if key in known:
                expected.append((f"{key}.cls", known[key]))
    assert members(joined(tmp_path, how=how, on_duplicate=duplicate, memory_bytes=memory)) == expected


def test_a_size_cuts_the_result(tmp_path):
    put(tmp_path, "a.tar", samples("abcd", jpg="{key}"))
    put(tmp_path, "b.tgz", samples("ef", jpg="{key}"))
    put(tmp_path, "t.csv", b"__key__,cls\n" + b"".join(b"%c,1\n" % each for each in b"abdef"), "other")
    done = joined(tmp_path, samples_per_shard=3, twice=True)
    assert [len(members_of(done.outputs[name])) for name in sorted(done.outputs)] == [6, 4]
    done = joined(tmp_path, "k-%03d.tgz", shard_size="3.1kB")
    assert len(done.outputs) == 5


def test_keys_that_come_more_than_once(tmp_path):
    put(tmp_path, "a.tar", samples("ab", jpg="x"))
    put(tmp_path, "b.tar", samples("a", jpg="y"))
    put(tmp_path, "1.csv", b"__key__,cls\na,1\na,2\n", "other")
    put(tmp_path, "2.csv", b"__key__,cls\na,3\n", "other")
    with pytest.raises(DuplicateKey, match="the key 'a'"):
        joined(tmp_path)
    for which, cls in (("first", b"1"), ("last", b"3")):
        assert members(joined(tmp_path, on_duplicate=which)) == [
            ("a.jpg", b"x"), ("a.cls", cls), ("a.jpg", b"y"), ("a.cls", cls),
        ]  # fmt: skip


def test_a_field_on_both_sides_fails(tmp_path):
    put(tmp_path, "a.tar", samples("ab", jpg="x", cls="1"))
    put(tmp_path, "1.csv", b"__key__,CLS\nb,1\n", "other")
    with pytest.raises(FieldOnBothSides, match=r"in/a.tar: the sample 'b' already has a field 'cls'"):
        joined(tmp_path)


@pytest.mark.parametrize("side", ["in", "other"])
def test_split_samples(tmp_path, side):
    other = "other" if side == "in" else "in"
    put(tmp_path, "a.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3"), ("c.jpg", b"4")], side)
    put(tmp_path, "b.tar", samples("abc", txt="{key}"), other)
    with pytest.raises(SplitSample, match="'a' occurs again"):
        joined(tmp_path)
    names = [name for name, _ in members(joined(tmp_path, on_split="join", twice=True))]
    assert sorted(names) == sorted(["a.jpg", "a.cls", "a.txt", "b.jpg", "b.txt", "c.jpg", "c.txt"])
    assert names == sorted(names, key=lambda name: name[0])
    if side == "in":
        names = [name for name, _ in members(joined(tmp_path, on_split="keep"))]
        assert names == ["a.jpg", "a.txt", "b.jpg", "b.txt", "a.cls", "a.txt", "c.jpg", "c.txt"]
    else:
        with pytest.raises(DuplicateKey):
            joined(tmp_path, on_split="keep")


def test_real_shards(tmp_path):
    put(tmp_path, "sample.tgz", (DATA / "sample.tgz").read_bytes())
    keys = [name.partition(".")[0] for name, _ in members_of((DATA / "sample.tgz").read_bytes()) if name.endswith("cls")]
    put(tmp_path, "t.csv", ("__key__,note\n" + "".join(f"{key},n{key}\n" for key in keys[::2])).encode(), "other")
    done = joined(tmp_path, twice=True)
    assert done.samples == 45
    assert members(done)[2] == (f"{keys[0]}.note", f"n{keys[0]}".encode())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "no column '__key__'"),
        ("t.csv", b"key,cls\na,1\n", "no column '__key__'"),
        ("t.csv", b"__key__,cls\na\n", "line 2 has 1 cells"),
        ("t.csv", b'__key__,cls\na,"1\n', "line 2: unexpected end"),
        ("t.csv", b"__key__,cls,CLS\na,1,2\n", "two of its columns"),
        ("t.csv", b"__key__,a/b\na,1\n", "the column 'a/b'"),
        ("t.csv", b"__key__,\na,1\n", "the column ''"),
        ("t.csv", b"__key__,x\na,\xff\n", "line 2 is not valid UTF-8"),
        ("t.jsonl", b'{"__key__": "a"}\n[1]\n', "line 2 is not a JSON object"),
        ("t.jsonl", b'{"key": "a"}\n', "line 1 has no string '__key__'"),
        ("t.jsonl", b'{"__key__": ["a"]}\n', "line 1 has no string '__key__'"),
        ("t.jsonl", b'{"__key__": "a", "b": 1, "B": 2}\n', "differ only in case"),
        ("t.jsonl", b'{"__key__": "\\ud800"}\n', "line 1 is not a JSON object"),
    ],
)
def test_broken_tables_name_the_line(tmp_path, name, content, message):
    put(tmp_path, "a.tar", samples("a", jpg="x"))
    put(tmp_path, name, content, "other")
    with pytest.raises(FormatError, match=message):
        joined(tmp_path)


def test_lines_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("dfc.jobs.operations.join.JOB_TABLE_LINE_BYTES_MAX", 100)
    put(tmp_path, "a.tar", samples("a", jpg="x"))
    put(tmp_path, "t.jsonl", b'{"__key__": "a", "x": "' + b"x" * 200 + b'"}\n', "other")
    with pytest.raises(FormatError, match="line 1 is longer than 100 bytes"):
        joined(tmp_path)


def test_what_is_neither_shard_nor_table(tmp_path):
    put(tmp_path, "a.tar", samples("a", jpg="x"))
    put(tmp_path, "notes.txt", b"x", "other")
    with pytest.raises(BadRequest, match=r"other/notes.txt is neither"):
        joined(tmp_path)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"how": "outer"}, BadRequest),
        ({"on_duplicate": "all"}, BadRequest),
        ({"key": ""}, BadRequest),
        ({"with": {"bucket": "b/c"}}, BadName),
        ({"with": {"bucket": "b", "shards": "{"}}, BadShardSpec),
        ({"with": {"shards": "x"}}, BadRequest),
        ({"samples_per_shard": 1, "shard_size": 1}, BadRequest),
    ],
)
def test_bad_options(tmp_path, options, error):
    put(tmp_path, "a.tar", [])
    with pytest.raises(error):
        joined(tmp_path, **options)
