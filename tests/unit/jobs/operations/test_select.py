"""select and dedup: what stays and what goes, in which shards, whatever the strategy."""

from __future__ import annotations

import json

import pytest
from folder_store import run_job
from job_shards import job, put
from jobs_ordered import canonical, compress, dataset, field, hash_of_key, key_of, samples_of, spec

from dfc.errors import BadRequest, Conflict


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("store")
    dataset(path, "in", 5, 40, seed=9)
    compress(path, "in", "packed", ".tar.zst")
    return path


@pytest.fixture(scope="module")
def shards(folder):
    return [samples_of(path.read_bytes()) for path in sorted((folder / "in").iterdir())]


def selected(folder, options, operation="select", **more):
    """The samples of each output."""
    done = run_job(folder, spec(operation, options, **more), twice=True)
    contents = list(done.outputs.values())
    assert contents == [canonical(samples_of(content)) for content in contents]
    return [samples_of(content) for content in contents]


def size(sample, ext):
    return -1 if field(sample, ext) is None else len(field(sample, ext))


def at(sample, ext, name):
    return None if field(sample, ext) is None else json.loads(field(sample, ext)).get(name)


CASES = [
    ({"key_regex": r".*/00[0-3]\d"}, lambda s: "/003" in key_of(s) or any(f"/00{d}" in key_of(s) for d in range(4))),
    ({"fraction": 0.3, "seed": 7}, lambda s: hash_of_key(7, key_of(s)) < 0.3 * 2**64),
    ({"fraction": 1}, lambda s: True),
    ({"fraction": 0}, lambda s: False),
    ({"predicate": {"field": "cls", "op": "eq", "value": 3}}, lambda s: int(field(s, "cls")) == 3),
    ({"predicate": {"field": "cls", "op": "in", "value": ["3", "4"]}}, lambda s: int(field(s, "cls")) in (3, 4)),
    ({"predicate": {"field": "size:jpg", "op": "gt", "value": 1000}}, lambda s: size(s, "jpg") > 1000),
    ({"predicate": {"field": "size:json", "op": "exists"}}, lambda s: size(s, "json") >= 0),
    ({"predicate": {"field": "json:n", "op": "lt", "value": 10}}, lambda s: at(s, "json", "n") in range(10)),
    ({"predicate": {"field": "json:n", "op": "ne", "value": 10}}, lambda s: at(s, "json", "n") not in (None, 10)),
    ({"predicate": {"field": "json:n", "op": "eq", "value": "1"}}, lambda s: False),
    ({"predicate": {"field": "absent:x.y", "op": "ne", "value": 1}}, lambda s: False),
    ({"predicate": {"not": {"field": "absent", "op": "ne", "value": 1}}}, lambda s: True),
    ({"predicate": {"field": "key", "op": "starts_with", "value": "long/"}}, lambda s: key_of(s).startswith("long/")),
    ({"predicate": {"field": "key", "op": "matches", "value": ".*1"}}, lambda s: key_of(s).endswith("1")),
    ({"predicate": {"field": "json:s", "op": "contains", "value": "1"}}, lambda s: "1" in (at(s, "json", "s") or "")),
    (
        {"predicate": {"all": [{"field": "cls", "op": "ge", "value": 5}, {"any": [
            {"field": "key", "op": "ends_with", "value": "7"}, {"not": {"field": "cls", "op": "le", "value": 8.5}}]}]}},
        lambda s: int(field(s, "cls")) >= 5 and (key_of(s).endswith("7") or int(field(s, "cls")) > 8.5),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "keep"), CASES)
def test_each_shard_has_what_is_left_of_it(folder, shards, options, keep):
    assert selected(folder, options) == [[sample for sample in shard if keep(sample)] for shard in shards]


@pytest.mark.parametrize(
    "options", [{"every": 7}, {"slice": "10:150:3"}, {"slice": "-30:"}, {"slice": "::40"}, {"slice": "500:"}, {"slice": "5:5"}]
)
@pytest.mark.parametrize("strategy", ["auto", "spill"])
def test_strides(folder, shards, options, strategy):
    everything = [(number, sample) for number, shard in enumerate(shards) for sample in shard]
    bounds = [int(x) if x else None for x in options.get("slice", "0::7").split(":")]
    chosen = everything[slice(*bounds)]
    expected = [[sample for number, sample in chosen if number == shard] for shard in range(5)]
    assert selected(folder, options | {"strategy": strategy}) == expected
    flat = [sample for _, sample in chosen]
    sized = selected(folder, options | {"samples_per_shard": 9, "strategy": strategy})
    assert sized == [flat[i : i + 9] for i in range(0, len(flat), 9)]


@pytest.mark.parametrize("sizes", [{}, {"samples_per_shard": 13}, {"shard_size": 9000}])
def test_ways_and_strategies_agree(folder, sizes):
    options = {"predicate": {"field": "cls", "op": "lt", "value": 4}} | sizes
    ways = [("in", "gather"), ("in", "spill"), ("packed", "auto"), ("packed", "spill")]
    digests = {run_job(folder, spec("select", options | {"strategy": way}, source=source)).digest for source, way in ways}
    assert len(digests) == 1


@pytest.mark.parametrize("form", ["txt", "ndjson", "crlf"])
def test_a_list_of_keys(folder, shards, form, monkeypatch):
    monkeypatch.setattr("dfc.jobs.data.partitions._RUN_KEYS", 10)
    wanted = [key_of(sample) for shard in shards for sample in shard][3::4]
    lines = [*reversed(wanted), "no such key", wanted[0], ""]
    if form == "ndjson":
        lines = [json.dumps({"shard": "x", "key": key}) for key in lines[:-1]]
    put(folder, form, ("\r\n" if form == "crlf" else "\n").join(lines).encode(), "lists")
    found = selected(folder, {"keys": {"bucket": "lists", "object": form}})
    assert found == [[sample for sample in shard if key_of(sample) in wanted] for shard in shards]


def test_a_list_that_is_none(folder):
    for content, message in ((b'key\n{"shard": 1}\n', "line 2"), (b"x" * (3 << 20), "too long")):
        put(folder, "bad", content, "lists")
        with pytest.raises(Conflict, match=message):
            run_job(folder, spec("select", {"keys": {"bucket": "lists", "object": "bad"}}))


deep: dict = {"field": "key", "op": "exists"}
for _ in range(40):
    deep = {"not": deep}


def test_numbers_of_very_many_digits(tmp_path):
    put(tmp_path, "a.tar", [("a.cls", b"9" * 5000), ("b.cls", b"7"), ("c.cls", b"-" + b"9" * 5000), ("d.cls", b"1e999")])
    for op, keys in (("gt", ["a", "d"]), ("lt", ["c"]), ("eq", ["b"])):
        done = run_job(tmp_path, job("select", "%01d.tar", predicate={"field": "cls", "op": op, "value": 7}))
        assert [key_of(sample) for content in done.outputs.values() for sample in samples_of(content)] == keys


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"every": 0},
        {"every": 2, "slice": "1:2"},
        {"fraction": 1.5},
        {"slice": "1"},
        {"slice": "1:2:0"},
        {"slice": "1:2:-1"},
        {"key_regex": "("},
        {"key_regex": r"(a)\1"},
        {"key_regex": "a" * 2000},
        {"key_regex": "((a{100}){100}){100}"},
        {"every": 3, "seed": 1},
        {"predicate": {}},
        {"predicate": deep},
        {"predicate": {"field": "cls"}},
        {"predicate": {"field": "cls", "op": "eq"}},
        {"predicate": {"field": "cls", "op": "exists", "value": 1}},
        {"predicate": {"field": "cls", "op": "lt", "value": None}},
        {"predicate": {"field": "", "op": "eq", "value": 1}},
        {"predicate": {"field": "cls", "op": "in", "value": 1}},
        {"predicate": {"all": [], "any": []}},
        {"predicate": {"all": [{"field": "cls", "op": "like", "value": 1}]}},
        {"predicate": {"field": "k", "op": "eq", "value": [1]}},
        {"predicate": {"field": "cls", "op": "eq", "value": 10**30}},
        {"every": 10**30},
        {"every": 2, "samples_per_shard": 10**30},
        {"every": 2, "shard_size": 10**30},
        {"every": 2, "shard_size": "9" * 400},
        {"keys": {"bucket": "../x", "object": "y"}},
        {"keys": "x"},
    ],
)
def test_bad_options(folder, options):
    with pytest.raises(BadRequest):
        run_job(folder, spec("select", options))


# --- dedup


@pytest.fixture(scope="module")
def doubled(tmp_path_factory):
    path = tmp_path_factory.mktemp("store")
    everything = dataset(path, "in", 3, 30, seed=1, mean=10)
    again = [*everything[5:40:3], [("new.cls", b"1")], [("new2.jpg", b"")], [("new3.jpg", b"")]]
    (path / "in" / "t-1.tar").write_bytes(canonical(again))
    (path / "in" / "t-2.tar").write_bytes(canonical(again[:4]))
    compress(path, "in", "packed", ".tgz")
    return path


def without(shards, value):
    seen, kept = set(), []
    for shard in shards:
        kept.append([])
        for sample in shard:
            mine = value(sample)
            if mine is None or mine not in seen:
                kept[-1].append(sample)
            seen.add(mine)
    return kept


@pytest.mark.parametrize(
    ("by", "value"), [("key", key_of), ("hash:jpg", lambda s: field(s, "jpg")), ("hash:no", lambda s: None)]
)
@pytest.mark.parametrize("memory", [1 << 14, 64 << 20])
def test_the_first_stays(doubled, by, value, memory):
    shards = [samples_of(path.read_bytes()) for path in sorted((doubled / "in").iterdir())]
    expected = without(shards, value)
    for source in ("in", "packed"):
        done = run_job(doubled, spec("dedup", {"by": by}, source=source), memory_bytes=memory, twice=True)
        assert [samples_of(content) for content in done.outputs.values()] == expected


@pytest.mark.parametrize("by", ["", "keys", "hash:", "hash", "md5:jpg"])
def test_bad_ways_to_dedup(doubled, by):
    with pytest.raises(BadRequest):
        run_job(doubled, spec("dedup", {"by": by}))
