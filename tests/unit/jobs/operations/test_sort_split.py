"""sort and split: exact orders and parts, by any type, with classes and groups, in samples that are split as well."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from folder_store import run_job
from job_shards import job, members_of, put
from jobs_ordered import canonical, compress, dataset, field, hash_of_key, key_of, samples_of, spec

from dfc.errors import BadRequest, Conflict
from dfc.jobs.operations.sort import encoder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("store")
    dataset(path, "in", 5, 40, seed=11)
    compress(path, "in", "packed", ".tar.xz")
    content = []
    for number in range(60):
        value = [number % 7, -1.5 * number, f"ä{number % 3}", 10**12 + number][number % 4]
        text = json.dumps({"a": [{"b": value}]}).encode()
        content.append([(f"k{number}.json", text), (f"k{number}.id", b" %d\n" % (99 - number))])
    put(path, "j.tar", canonical(content), "json")
    return path


def shards_of(folder, bucket="in"):
    return [samples_of(path.read_bytes()) for path in sorted((folder / bucket).iterdir())]


def flat(shards):
    return [sample for shard in shards for sample in shard]


def outputs(folder, operation, options, **more):
    return [samples_of(content) for content in run_job(folder, spec(operation, options, **more), twice=True).outputs.values()]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("memory", [1 << 14, 64 << 20])
@pytest.mark.parametrize("strategy", ["gather", "spill"])
def test_sort_by_class_is_stable(folder, reverse, memory, strategy):
    options = {"by": "cls", "reverse": reverse, "samples_per_shard": 30, "strategy": strategy}
    done = run_job(folder, spec("sort", options), memory_bytes=memory, twice=True)
    everything = flat(shards_of(folder))
    expected = sorted(everything, key=lambda s: int(field(s, "cls")) * (-1 if reverse else 1))
    assert list(done.outputs.values()) == [canonical(expected[i : i + 30]) for i in range(0, 160, 30)]
    assert (len(done.results["ranks"]) > 1) == (memory == 1 << 14)


@pytest.mark.parametrize("reverse", [False, True])
def test_sort_by_key_and_text(folder, reverse):
    everything = flat(shards_of(folder))
    got = flat(outputs(folder, "sort", {"by": "key", "reverse": reverse}))
    assert got == sorted(everything, key=lambda s: key_of(s).encode(), reverse=reverse)
    got = flat(outputs(folder, "sort", {"by": "cls", "type": "text", "reverse": reverse}))
    assert [field(s, "cls") for s in got] == sorted((field(s, "cls") for s in everything), reverse=reverse)


def test_ranges_of_values_are_even_for_shards_of_very_different_sizes(tmp_path):
    folder = "a/long/way/" * 15
    put(tmp_path, "large.tar", [(f"{folder}z{number * 7919 % 2000:04d}.x", b"") for number in range(2000)])
    for shard in range(40):
        put(tmp_path, f"small-{shard:02d}.tar", [(f"{folder}a{number}-{shard}.x", b"") for number in range(10)])
    done = run_job(tmp_path, job("sort", "%03d.tar", by="key", samples_per_shard=2400), memory_bytes=160_000)
    counts = [result.decode(int) for result in done.results["ranks"]]
    assert sum(counts) == 2400
    assert len(counts) >= 10
    assert max(counts) <= 2 * 2400 / len(counts)
    (content,) = done.outputs.values()
    names = [name for name, _ in members_of(content)]
    assert names == sorted(names)


def test_sort_keeps_counts_without_a_size(folder):
    assert [len(each) for each in outputs(folder, "sort", {"by": "key"})] == [40, 40, 40, 40, 0]
    plain = run_job(folder, spec("sort", {"by": "key", "shard_size": 20_000}))
    packed = run_job(folder, spec("sort", {"by": "key", "shard_size": 20_000}, source="packed"))
    assert plain.digest == packed.digest


def test_sort_by_json_and_number_like_fields(folder):
    got = flat(outputs(folder, "sort", {"by": "json:a.0.b"}, source="json"))
    texts = [str(json.loads(field(s, "json"))["a"][0]["b"]) for s in got]
    assert texts == sorted(texts, key=str.encode)
    got = flat(outputs(folder, "sort", {"by": "id"}, source="json"))
    assert [int(field(s, "id")) for s in got] == list(range(40, 100))


@pytest.mark.parametrize(
    ("options", "source", "message"),
    [
        ({"by": "json:a.0.b", "type": "float"}, "json", "'k2'"),
        ({"by": "json:a.0.c"}, "json", "'k0'"),
        ({"by": "json:a"}, "json", "'k0'"),
        ({"by": "json"}, "in", "has no 'json'"),
        ({"by": "jpg", "type": "int"}, "in", "'jpg'"),
    ],
)
def test_a_value_that_does_not_parse_fails_naming_the_sample(folder, options, source, message):
    with pytest.raises(Conflict, match=message):
        run_job(folder, spec("sort", options, source=source))


@pytest.mark.parametrize(
    "options", [{"by": ""}, {"by": "json:"}, {"by": "key", "type": "int"}, {"type": "date"}, {"reverse": 1}]
)
def test_bad_sorts(folder, options):
    with pytest.raises(BadRequest):
        run_job(folder, spec("sort", options))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("int", [b"-9223372036854775808", b"-5", b"-1", b"0", b"+1", b"007", b"8", b"9223372036854775807"]),
        ("float", [b"-1e300", b"-2.5", b"-1e-300", b"0", b".5", b"1", b"1e10", b"1e300"]),
        ("text", [b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0b", b"aa", b"ab", "ä".encode(), "\U0010ffff".encode()]),
    ],
)
def test_encoded_values_are_in_order(kind, values, reverse):
    encode = encoder(kind, (), reverse)
    assert sorted(values[3:] + values[:3], key=encode) == (values[::-1] if reverse else values)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", b"1_0"),
        ("int", b"1.0"),
        ("int", b"9223372036854775808"),
        ("int", b""),
        ("int", b"9" * 10_000),
        ("int", "٣".encode()),
        ("float", b"nan"),
        ("float", b"inf"),
        ("float", b"1e999"),
        ("float", b"x"),
        ("text", b"\xff"),
        ("text", b"x" * 70_000),
    ],
)
def test_values_that_are_none(kind, value):
    with pytest.raises(ValueError):
        encoder(kind, (), False)(value)


# --- split

PATTERN = "{part}/p-%02d.tar"
PARTS = {"parts": {"train": 0.7, "val": 0.2, "test": 0.1}}


def split(folder, options, **more):
    done = run_job(folder, spec("split", options, pattern=PATTERN, **more), twice=True)
    parts: dict[str, list] = {}
    for name, content in sorted(done.outputs.items()):
        parts.setdefault(name.split("/")[0], []).append(samples_of(content))
    return parts


def part_of(draw: int) -> str:
    return "train" if draw < math.ceil(0.7 * 2**64) else "val" if draw < math.ceil(math.fsum([0.7, 0.2]) * 2**64) else "test"


@pytest.mark.parametrize("source", ["in", "packed"])
@pytest.mark.parametrize("strategy", ["auto", "spill"])
def test_split_by_key(folder, source, strategy):
    parts = split(folder, PARTS | {"seed": 3, "strategy": strategy}, source=source)
    for name in PARTS["parts"]:
        assert parts[name] == [[s for s in shard if part_of(hash_of_key(3, key_of(s))) == name] for shard in shards_of(folder)]
    sized = split(folder, PARTS | {"seed": 3, "samples_per_shard": 25, "strategy": strategy}, source=source)
    for name, shards in parts.items():
        assert sized[name] == [flat(shards)[i : i + 25] for i in range(0, len(flat(shards)), 25)]


def test_groups_stay_together(folder):
    parts = split(folder, PARTS | {"group_regex": "^[^/]+/"})
    where = {key_of(s).split("/")[0]: name for name, shards in parts.items() for s in flat(shards)}
    for name, shards in parts.items():
        assert {where[key_of(s).split("/")[0]] for s in flat(shards)} <= {name}
    assert all(part_of(hash_of_key(0, f"{group}/")) == name for group, name in where.items())


@pytest.mark.parametrize("memory", [1 << 14, 64 << 20])
def test_classes_are_divided_exactly(folder, memory):
    done = run_job(folder, spec("split", PARTS | {"stratify": "cls"}, pattern=PATTERN), memory_bytes=memory, twice=True)
    counts: dict[str, Counter] = {name: Counter() for name in PARTS["parts"]}
    everything = flat(shards_of(folder))
    for name, content in done.outputs.items():
        counts[name.split("/")[0]].update(field(s, "cls") for s in samples_of(content))
    for label, total in Counter(field(s, "cls") for s in everything).items():
        ends = [math.floor(0.7 * total + 0.5), math.floor(math.fsum([0.7, 0.2]) * total + 0.5), total]
        assert [counts[name][label] for name in PARTS["parts"]] == [ends[0], ends[1] - ends[0], total - ends[1]]
    assert done.samples == len(everything)
    assert (len(done.results["ranks"]) > 1) == (memory == 1 << 14)


def test_absent_is_a_class(folder):
    parts = split(folder, {"folds": 2, "stratify": "json:s"})
    without = [sum(field(s, "json") is None for s in flat(shards)) for shards in parts.values()]
    assert abs(without[0] - without[1]) <= 1


def test_folds(folder):
    parts = split(folder, {"folds": 4})
    assert sorted(parts) == ["0", "1", "2", "3"]
    assert sorted(map(key_of, flat(map(flat, parts.values())))) == sorted(map(key_of, flat(shards_of(folder))))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"parts": {}},
        {"parts": {"a": 0.5}},
        {"parts": {"a": 0.5, "b": 0.6}},
        {"parts": {"a/b": 1}},
        {"parts": {"a": 1}, "folds": 2},
        {"folds": 1},
        {"folds": 2, "group_regex": "("},
        {"folds": 2, "group_regex": "a", "stratify": "cls"},
        {"folds": 2, "stratify": ""},
    ],
)
def test_bad_splits(folder, options):
    with pytest.raises(BadRequest):
        run_job(folder, spec("split", options, pattern=PATTERN))


def test_a_split_names_its_parts(folder):
    with pytest.raises(BadRequest):
        run_job(folder, spec("split", PARTS))


# --- keys that come back

SPLIT = [[("a.x", b"1")], [("b.x", b"2")], [("a.y", b"3")], [("c.x", b"4")]]
KEYED = {"reshuffle": {"samples_per_shard": 2}, "reshard": {}, "select": {"every": 1}, "sort": {"by": "key"}, "dedup": {}}


@pytest.mark.parametrize("ending", [".tar", ".tgz"])
@pytest.mark.parametrize(("operation", "options"), KEYED.items())
def test_keys_that_come_back(tmp_path, operation, options, ending):
    put(tmp_path, "s-1.tar", canonical(SPLIT), "raw")
    put(tmp_path, "s-0.tar", canonical([[("z.x", b"5")]]), "raw")
    compress(tmp_path, "raw", "in", ending) if ending != ".tar" else (tmp_path / "raw").rename(tmp_path / "in")
    with pytest.raises(Conflict, match="'a'"):
        run_job(tmp_path, spec(operation, options))
    kept = flat(outputs(tmp_path, operation, options | {"on_split": "keep"}))
    assert len(kept) == (4 if operation == "dedup" else 5)
    joined = flat(outputs(tmp_path, operation, options | {"on_split": "join"}))
    assert sorted(joined) == [[("a.x", b"1"), ("a.y", b"3")], [("b.x", b"2")], [("c.x", b"4")], [("z.x", b"5")]]


def test_split_with_keys_that_come_back(tmp_path):
    put(tmp_path, "s.tar", canonical(SPLIT))
    options = {"folds": 2, "stratify": "x"}
    with pytest.raises(Conflict, match="'a'"):
        split(tmp_path, options)
    joined = split(tmp_path, options | {"on_split": "join"})
    assert sorted(len(flat(shards)) for shards in joined.values()) in ([0, 3], [1, 2])
