"""Conversions there and back over real and odd shards, options, hostile inputs."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import lmdb
import msgpack
import pyarrow.parquet
import pytest
from folder_store import run_job
from job_shards import job, members_of, put, samples, tar_of

from dfc.errors import BadName, BadRequest, Conflict, NotAShard
from dfc.formats import base
from dfc.formats.base import ExtraMissing, FormatError, SplitSample
from dfc.formats.table import FORMATS
from dfc.jobs.data import corpus
from dfc.jobs.data import samples as reading
from dfc.jobs.operations import convert
from dfc.jobs.request import parse_spec
from dfc.tar.header import TarError

DATA = Path(__file__).parents[3] / "data"
PATTERNS = {
    "tar": "x-%06d.tar",
    "tgz": "x-%06d.tgz",
    "tar.zst": "x-%06d.tar.zst",
    "tar.lz4": "x-%06d.tar.lz4",
    "directory": "x/%06d/",
    "lmdb": "x/%06d/",
    **{name: "x-%06d" + what.endings[0] for name, what in FORMATS.items() if what.file},
}
FILES = [name for name, what in FORMATS.items() if what.file]
KEEP_NAMES = ("tar", "tgz", "tar.zst", "tar.lz4", "zip", "parquet")  # the others hold extensions in lower case
SORTED = ("directory", "lmdb")  # by the bytes of names or keys
ODD = [
    ("b/ünï code.jpg", b"\xff" * 700),
    ("b/ünï code.seg.png", b""),
    ("a.cls", b"1"),
    ("a.jpg", b"\0\n\x0a\x23\xd7\xce"),
    ("README", b"belongs to no sample"),
    ("c.jpg", b""),
    ("only-cls.cls", b"2"),
    ("n" * 150 + "/" + "m" * 90 + ".txt", b"long"),
]


def convert_to(
    folder: Path, format: str, source: str = "in", out: str = "out", shards="**", pattern: str | None = None, **options
):
    spec = job("convert", pattern or PATTERNS[format], shards, format=format, **options)
    spec = {**spec, "input": {"bucket": source, "shards": shards}, "output": {**spec["output"], "bucket": out}}
    return run_job(folder, spec, twice=True)


def there_and_back(folder: Path, format: str, shard: str) -> tuple[bytes, bytes]:
    """The canonical tar of a shard, and the tar that comes back from a format."""
    canonical = convert_to(folder, "tar", out="canonical", shards=[shard]).outputs["x-000000.tar"]
    first = convert_to(folder, format, out="there", shards=[shard])
    again = convert_to(folder, format, out="again", shards=[shard])
    assert (first.outputs, first.digest) == (again.outputs, again.digest), "the same job gives the same bytes"
    shards = "x/000000/" if format == "directory" else "**"
    back = convert_to(folder, "tar", source="there", out="back", shards=shards)
    assert first.samples == back.samples
    return canonical, back.outputs["x-000000.tar"]


@pytest.mark.parametrize("format", list(PATTERNS))
@pytest.mark.parametrize("shard", ["compressed.tar", "mpdata.tar", "tendata.tar", "sample.tgz"])
def test_real_shards(tmp_path, format, shard):
    put(tmp_path, shard, (DATA / shard).read_bytes())
    canonical, back = there_and_back(tmp_path, format, shard)
    assert back == canonical


@pytest.mark.parametrize("format", list(PATTERNS))
def test_odd_samples(tmp_path, format):
    put(tmp_path, "odd.tar", ODD)
    canonical, back = there_and_back(tmp_path, format, "odd.tar")
    if format in SORTED:
        assert sorted(members_of(back)) == sorted(members_of(canonical))
    else:
        assert back == canonical
    assert ("c.jpg", b"") in members_of(back)
    assert not any(name == "c.cls" for name, _ in members_of(back)), "absent is not empty"


@pytest.mark.parametrize("format", KEEP_NAMES)
def test_names_as_they_were_written(tmp_path, format):
    put(tmp_path, "x.tar", [("a.JPG", b"1"), ("a.Cls", b"2"), ("b.cls", b"3"), ("b.jpg", b"4")])
    canonical, back = there_and_back(tmp_path, format, "x.tar")
    assert back == canonical


@pytest.mark.parametrize("format", [name for name in PATTERNS if name != "directory"])
def test_no_samples(tmp_path, format):
    put(tmp_path, "x.tar", [])
    canonical, back = there_and_back(tmp_path, format, "x.tar")
    assert back == canonical == bytes(1024)


def test_a_directory_of_nothing(tmp_path):
    put(tmp_path, "x.tar", [])
    assert convert_to(tmp_path, "directory").outputs == {}


@pytest.mark.parametrize("format", list(PATTERNS))
def test_one_output_an_input_in_the_order_of_the_spec(tmp_path, format):
    for number in range(3):
        put(tmp_path, f"s{number}.tar", samples([f"k{number}-{at}" for at in range(number)], txt="{key}"))
    done = convert_to(tmp_path, format, shards=["s2.tar", "s0.tar", "s1.tar"])
    kept = [name for name in done.outputs if not name.endswith(".idx")]
    if format == "directory":
        assert sorted(kept) == ["x/000000/k2-0.txt", "x/000000/k2-1.txt", "x/000002/k1-0.txt"]
    else:
        tail = "data.mdb" if format == "lmdb" else ""
        assert sorted(kept) == [PATTERNS[format].replace("%06d", f"{number:06d}") + tail for number in range(3)]
    assert done.samples == 3


# --- what the formats' own programs see


def test_parquet_has_one_schema_over_all_shards(tmp_path):
    put(tmp_path, "a.tar", [("a.jpg", b"1"), ("a.cls", b"")])
    put(tmp_path, "b.tar", [("b.txt", b"2")])
    put(tmp_path, "c.tar", [])
    done = convert_to(tmp_path, "parquet")
    tables = [pyarrow.parquet.read_table(io.BytesIO(done.outputs[f"x-{number:06d}.parquet"])) for number in range(3)]
    assert {tuple(table.schema.names) for table in tables} == {("__key__", "cls", "jpg", "txt")}
    assert tables[0].to_pylist() == [{"__key__": "a", "cls": b"", "jpg": b"1", "txt": None}]
    assert tables[1].to_pylist() == [{"__key__": "b", "cls": None, "jpg": None, "txt": b"2"}]


@pytest.mark.parametrize("source", ["directory", "lmdb", *FILES])
def test_parquet_of_other_formats(tmp_path, source):
    put(tmp_path, "a.tar", [("a.cls", b"1"), ("a.jpg", b""), ("b.txt", b"2")])
    convert_to(tmp_path, source, out="there")
    done = convert_to(tmp_path, "parquet", source="there", shards="x/000000/" if source == "directory" else "**")
    table = pyarrow.parquet.read_table(io.BytesIO(done.outputs["x-000000.parquet"]))
    assert table.to_pylist() == [
        {"__key__": "a", "cls": b"1", "jpg": b"", "txt": None}, {"__key__": "b", "cls": None, "jpg": None, "txt": b"2"},
    ]  # fmt: skip


def test_lmdb_by_its_library(tmp_path):
    put(tmp_path, "a.tar", samples("zyx", jpg="{key}!", cls="{number}"))
    convert_to(tmp_path, "lmdb")
    with lmdb.open(str(tmp_path / "out/x/000000"), readonly=True, lock=False) as environment, environment.begin() as reader:
        found = [(key.decode(), msgpack.unpackb(value)) for key, value in reader.cursor()]
    assert found == [
        (key, {"jpg": f"{key}!".encode(), "cls": str(number).encode()}) for number, key in ((2, "x"), (1, "y"), (0, "z"))
    ]


def test_zip_and_tar_by_their_tools(tmp_path):
    put(tmp_path, "odd.tar", ODD)
    convert_to(tmp_path, "zip")
    convert_to(tmp_path, "tgz")
    wanted = [name for name, _ in ODD if name != "README"]
    with zipfile.ZipFile(tmp_path / "out/x-000000.zip") as archive:
        assert archive.namelist() == wanted
        assert archive.testzip() is None
    command = ["tar", "--quoting-style=literal", "-tzf", tmp_path / "out/x-000000.tgz"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.decode().splitlines() == wanted


def test_a_directory(tmp_path):
    put(tmp_path, "odd.tar", ODD)
    done = convert_to(tmp_path, "directory", pattern="tree/")
    assert {name.removeprefix("tree/"): data for name, data in done.outputs.items()} == dict(ODD[:4] + ODD[5:])
    put(tmp_path, "tree/README", b"no sample", bucket="out")
    back = convert_to(tmp_path, "tar", source="out", out="back", shards="tree/", pattern="x.tar")
    assert members_of(back.outputs["x.tar"])[0] == ("a.cls", b"1")
    assert back.warnings == ["out/tree/: 1 objects that belong to no sample were left out"]


def test_recordio_has_an_index_beside_it(tmp_path):
    put(tmp_path, "a.tar", samples("ab", jpg="{key}"))
    done = convert_to(tmp_path, "recordio")
    assert sorted(done.outputs) == ["x-000000.idx", "x-000000.rec"]
    assert [line.split("\t")[0] for line in done.outputs["x-000000.idx"].decode().splitlines()] == ["0", "1"]


@pytest.mark.parametrize(("pattern", "index"), [("d/x-%06d.rec", "d/x-000007.idx"), ("x.rec", "x.idx"), ("plain", "plain.idx")])
def test_an_index_in_the_way_is_seen(pattern, index):
    checked = parse_spec(json.dumps(job("convert", pattern, format="recordio")).encode())
    assert checked.pattern.matches(index)
    assert checked.pattern.matches(checked.pattern.name(7))
    assert index.startswith(checked.pattern.literal)
    assert not checked.pattern.matches(f"{index}x")


def test_dali_index(tmp_path):
    put(tmp_path, "a.tar", ODD[2:6])
    put(tmp_path, "b.tar", [])
    done = convert_to(tmp_path, "dali-index", pattern="x-%06d.idx")
    with tarfile.open(tmp_path / "in/a.tar") as tar:
        at = {info.name: info.offset_data for info in tar}
    lines = done.outputs["x-000000.idx"].decode().splitlines()
    assert lines == ["v1.2 2", f"cls {at['a.cls']} 1 a.cls jpg {at['a.jpg']} 6 a.jpg", f"jpg {at['c.jpg']} 0 c.jpg"]
    assert done.outputs["x-000001.idx"] == b"v1.2 0\n"


def test_wids_index(tmp_path):
    for name in ("a.tar", "b.tar"):
        put(tmp_path, name, samples(name[0] * 3, txt=name))
    put(tmp_path, "notes.txt", b"left out: no shard")
    done = convert_to(tmp_path, "wids-index", pattern="index.json")
    found = json.loads(done.outputs["index.json"])
    assert found["shardlist"] == [
        {"url": f"../in/{name}", "nsamples": 3, "filesize": (tmp_path / "in" / name).stat().st_size}
        for name in ("a.tar", "b.tar")
    ]


@pytest.mark.parametrize("format", ["dali-index", "wids-index"])
def test_indexes_are_for_plain_tars(tmp_path, format):
    put(tmp_path, "a.tgz", samples("a", txt="1"))
    with pytest.raises(BadRequest, match=r"reads only uncompressed tars, and in/a\.tgz is compressed"):
        convert_to(tmp_path, format, pattern="index")
    (tmp_path / "in/a.tgz").unlink()
    put(tmp_path, "b.tar", b"no tar at all")
    with pytest.raises(NotAShard, match=r"in/b\.tar"):
        convert_to(tmp_path, format, pattern="index")


# --- options


def test_levels(tmp_path):
    put(tmp_path, "a.tar", samples([f"{number:04d}" for number in range(300)], txt="some text {number} " * 20))
    for format, levels in (("tgz", (1, 9)), ("tar.zst", (1, 19)), ("zip", (0, 9)), ("parquet", (0, 9))):
        low, high = (convert_to(tmp_path, format, level=level) for level in levels)
        assert sum(map(len, high.outputs.values())) < sum(map(len, low.outputs.values()))
    assert convert_to(tmp_path, "tgz", level=1).digest == convert_to(tmp_path, "tgz", level=9).digest


@pytest.mark.parametrize("format", ["tar", "parquet", "tfrecord"])
def test_fields(tmp_path, format):
    put(tmp_path, "a.tar", [("a.cls", b"1"), ("a.jpg", b"2"), ("a.txt", b"3"), ("b.txt", b"4"), ("c.JPG", b"5")])
    done = convert_to(tmp_path, format, out="there", fields=["jpg", "cls"])
    assert done.warnings == ["in/a.tar: 1 samples without any of the fields were left out"]
    back = convert_to(tmp_path, "tar", source="there")
    assert [name.lower() for name, _ in members_of(back.outputs["x-000000.tar"])] == ["a.cls", "a.jpg", "c.jpg"]
    if format == "parquet":
        assert pyarrow.parquet.read_schema(tmp_path / "there/x-000000.parquet").names == ["__key__", "jpg", "cls"]


@pytest.mark.parametrize(
    ("options", "pattern", "message"),
    [
        ({"format": "tgz", "level": 10}, "x.tgz", "tgz has levels from 0 to 9, not 10"),
        ({"format": "tar.zst", "level": 0}, "x.tar.zst", "tar.zst has levels from 1 to 19"),
        ({"format": "tar", "level": 1}, "x.tar", "the format tar has no compression levels"),
        ({"format": "tgz"}, "x.tar", r"end in \.tgz or \.tar\.gz"),
        ({"format": "zip"}, "x.tar", "is for the format tar, not zip"),
        ({"format": "tfrecord"}, "x.parquet", "is for the format parquet, not tfrecord"),
        ({"format": "lmdb"}, "x.mdb", "writes a directory tree: the output pattern must end in '/'"),
        ({"format": "zip"}, "x/", "the output pattern cannot end in '/'"),
        ({"format": "tar"}, "{part}.tar", "convert has no parts"),
        ({"format": "wids-index"}, "x-%06d.json", "cannot have a number"),
        ({"format": "dali-index", "fields": ["x"]}, "x.idx", "takes no 'fields'"),
        ({"format": "tar", "samples_per_shard": 5}, "x.tar", "the output pattern needs a number"),
        ({"format": "tar", "samples_per_shard": 0}, "x-%06d.tar", "invalid options for convert"),
        ({"format": "wids-index", "samples_per_shard": 5}, "x.json", "takes no 'samples_per_shard'"),
        ({"format": "tar", "fields": ["JPG"]}, "x.tar", "in lower case"),
        ({"format": "tar", "fields": ["a", "a"]}, "x.tar", "distinct extensions"),
        ({"format": "tar", "fields": []}, "x.tar", "invalid options for convert"),
        ({"format": "rar"}, "x.rar", "invalid options for convert"),
        ({"format": "tar", "compression": 3}, "x.tar", "invalid options for convert"),
        ({}, "x.tar", "invalid options for convert"),
    ],
)
def test_options_that_cannot_be(tmp_path, options, pattern, message):
    put(tmp_path, "a.tar", samples("a", txt="1"))
    with pytest.raises(BadRequest, match=message):
        run_job(tmp_path, job("convert", pattern, **options))


def test_a_library_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "find_spec", lambda name: None)
    put(tmp_path, "a.tar", samples("a", txt="1"))
    for format, module in (("parquet", "pyarrow"), ("lmdb", "lmdb")):
        with pytest.raises(ExtraMissing, match=f"pip install {module}"):
            convert_to(tmp_path, format)


def test_several_inputs_want_a_number(tmp_path):
    for name in ("a.tar", "b.tar"):
        put(tmp_path, name, samples("a", txt="1"))
    with pytest.raises(BadRequest, match="2 inputs make 2 outputs"):
        convert_to(tmp_path, "zip", pattern="x.zip")


# --- what is an input


def test_a_name_that_says_nothing_and_one_that_does(tmp_path):
    put(tmp_path, "a.tar", samples("a", txt="1"))
    put(tmp_path, "b.bin", b"1")
    with pytest.raises(BadRequest, match=r"cannot tell the format of in/b\.bin"):
        convert_to(tmp_path, "zip")
    put(tmp_path, "there/data-00000-of-00001", b"", bucket="in")
    done = convert_to(tmp_path, "tar", shards=["there/data-00000-of-00001"], **{"from": "tfrecord"})
    assert done.outputs == {"x-000000.tar": bytes(1024)}


def test_a_tree_with_archives_in_it(tmp_path):
    put(tmp_path, "tree/a.jpg", b"1")
    put(tmp_path, "tree/a.tar", samples("x", txt="1"))
    done = convert_to(tmp_path, "tar", shards="tree/", **{"from": "directory"})
    assert [name for name, _ in members_of(done.outputs["x-000000.tar"])] == ["a.jpg", "a.tar"]


def test_files_that_go_with_others_are_no_inputs(tmp_path):
    put(tmp_path, "a.tar", samples("a", txt="1"))
    put(tmp_path, "a.idx", b"v1.2 0\n")
    put(tmp_path, "db/lock.mdb", b"")
    convert_to(tmp_path, "lmdb", out="in", pattern="db/", shards=["a.tar"])
    assert sorted(convert_to(tmp_path, "zip").outputs) == ["x-000000.zip", "x-000001.zip"]


def test_a_tar_that_is_none(tmp_path):
    put(tmp_path, "a.tar", b"x" * 2000)
    with pytest.raises(NotAShard, match=r"in/a\.tar is not an archive"):
        convert_to(tmp_path, "zip")


@pytest.mark.parametrize("ending", [FORMATS[name].endings[0][1:] for name in FILES])
def test_files_that_are_not_what_they_are_called(tmp_path, ending):
    put(tmp_path, f"a.{ending}", b"something else entirely " * 10)
    with pytest.raises(FormatError, match=rf"in/a\.{ending}: "):
        convert_to(tmp_path, "tar")


def test_a_data_mdb_that_is_none(tmp_path):
    put(tmp_path, "db/data.mdb", b"something else entirely " * 1000)
    with pytest.raises(FormatError, match=r"in/db/data\.mdb: not an LMDB file"):
        convert_to(tmp_path, "tar")


# --- sizes


SIZED = [name for name in PATTERNS if name != "directory"]


def shards_of_all_kinds(folder: Path, source: str) -> list[tuple[str, bytes]]:
    """Three inputs of 4, 0 and 5 samples in a format, in the bucket `there`; the members of all."""
    keys = [[f"a{number}" for number in range(4)], [], [f"b{number}" for number in range(5)]]
    for number, each in enumerate(keys):
        put(folder, f"s{number}.tar", samples(each, cls="{number}", txt="{key}"))
    convert_to(folder, source, out="there")
    return [member for each in keys for member in samples(each, cls="{number}", txt="{key}")]


@pytest.mark.parametrize("source", SIZED)
def test_outputs_of_a_size_from_every_format(tmp_path, source):
    members = shards_of_all_kinds(tmp_path, source)
    done = convert_to(tmp_path, "tar", source="there", samples_per_shard=2)
    assert sorted(done.outputs) == [f"x-{number:06d}.tar" for number in range(5)]
    found = [members_of(data) for _, data in sorted(done.outputs.items())]
    assert [len(each) for each in found] == [4, 4, 4, 4, 2]
    assert [member for each in found for member in each] == members
    assert done.samples == 9


@pytest.mark.parametrize("format", list(PATTERNS))
def test_outputs_of_a_size_to_every_format(tmp_path, format):
    members = shards_of_all_kinds(tmp_path, "tar")
    one = convert_to(tmp_path, format, samples_per_shard=4)
    again = convert_to(tmp_path, format, out="again", source="there", samples_per_shard=4)
    assert one.samples == 9
    if format != "sequencefile":  # its marker knows the stored bytes
        assert one.outputs == again.outputs, "canonical or not, the samples are the same"
    found = []
    for number in range(3):
        shards = f"x/{number:06d}/" if format in ("directory", "lmdb") else [PATTERNS[format] % number]
        back = convert_to(tmp_path, "tar", source="out", out=f"back{number}", shards=shards)
        found.append(members_of(back.outputs["x-000000.tar"]))
    assert [len(each) for each in found] == [8, 8, 2]
    assert [member for each in found for member in each] == members


def test_sizes_with_fields_levels_and_compressed_inputs(tmp_path):
    members = shards_of_all_kinds(tmp_path, "tgz")
    done = convert_to(tmp_path, "parquet", source="there", samples_per_shard=100, fields=["txt"], level=0)
    rows = pyarrow.parquet.read_table(io.BytesIO(done.outputs["x-000000.parquet"])).to_pylist()
    assert rows == [{"__key__": name[:-4], "txt": data} for name, data in members if name.endswith("txt")]


def test_sizes_and_keys_that_come_back(tmp_path):
    put(tmp_path, "x.tar", SPLIT)
    with pytest.raises(SplitSample):
        convert_to(tmp_path, "tar", samples_per_shard=1)
    kept = convert_to(tmp_path, "tar", samples_per_shard=1, on_split="keep")
    assert [members_of(data) for data in kept.outputs.values()] == [[member] for member in SPLIT]
    joined = convert_to(tmp_path, "tar", samples_per_shard=1, on_split="join", out="joined")
    assert [[name for name, _ in members_of(data)] for data in joined.outputs.values()] == [["a.jpg", "a.cls"], ["b.jpg"]]


@pytest.mark.parametrize("format", ["tar", "parquet", "sequencefile"])
def test_sizes_and_no_samples(tmp_path, format):
    put(tmp_path, "x.tar", [])
    done = convert_to(tmp_path, format, samples_per_shard=3)
    assert (len(done.outputs), done.samples) == (1, 0)


def test_a_tree_in_shards(tmp_path):
    for name, data in ODD[:4]:
        put(tmp_path, f"tree/{name}", data)
    done = convert_to(tmp_path, "tar", shards="tree/", samples_per_shard=1)
    assert [members_of(data) for data in done.outputs.values()] == [ODD[2:4], ODD[:2]]


# --- keys


SPLIT = [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3")]


@pytest.mark.parametrize("source", ["tar", "zip"])
def test_a_key_that_comes_back(tmp_path, source):
    path = put(tmp_path, f"x.{source}", SPLIT)
    if source == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in SPLIT:
                archive.writestr(name, data)
    with pytest.raises(SplitSample, match=r"the key 'a' occurs again"):
        convert_to(tmp_path, "tar")
    joined = convert_to(tmp_path, "tar", on_split="join").outputs["x-000000.tar"]
    assert [name for name, _ in members_of(joined)] == ["a.jpg", "a.cls", "b.jpg"]
    kept = convert_to(tmp_path, "tar", on_split="keep").outputs["x-000000.tar"]
    assert members_of(kept) == SPLIT


@pytest.mark.parametrize("format", [name for name in FILES if name != "zip"])  # which would lose one of two names
def test_records_of_one_key(tmp_path, format):
    put(tmp_path, "x.tar", SPLIT)
    convert_to(tmp_path, format, out="there", on_split="keep")
    with pytest.raises(SplitSample, match="the key 'a' occurs again"):
        convert_to(tmp_path, "tar", source="there")
    assert members_of(convert_to(tmp_path, "tar", source="there", on_split="keep").outputs["x-000000.tar"]) == SPLIT
    joined = convert_to(tmp_path, "tar", source="there", on_split="join").outputs["x-000000.tar"]
    assert [name for name, _ in members_of(joined)] == ["a.jpg", "a.cls", "b.jpg"]


def test_formats_that_hold_a_key_once(tmp_path):
    put(tmp_path, "x.tar", [*SPLIT, ("a.jpg", b"4")])
    for format in ("lmdb", "zip", "directory"):
        with pytest.raises(Conflict, match=r"twice|two"):
            convert_to(tmp_path, format, on_split="keep")


@pytest.mark.parametrize("name", ["../a.txt", "/a.txt", "a/./b.txt", "d//e.txt", "c\nd.txt"])
def test_names_that_are_no_objects(tmp_path, name):
    put(tmp_path, "x.tar", [(name, b"1")])
    with pytest.raises(BadName):
        convert_to(tmp_path, "directory")


# --- bounds


@pytest.mark.parametrize("source", ["tar", "lmdb", "directory", *(name for name in FILES if name != "parquet")])
def test_a_member_over_the_limit(tmp_path, source, monkeypatch):
    put(tmp_path, "x.tar", [("a.bin", b"x" * 20_000)])
    convert_to(tmp_path, source, out="there")
    for module in (base, reading, corpus, _module("lmdb"), *map(_module, FILES)):
        if hasattr(module, "JOB_MEMBER_BYTES_MAX"):
            monkeypatch.setattr(module, "JOB_MEMBER_BYTES_MAX", 10_000)
    with pytest.raises((FormatError, TarError), match="too large to be changed in memory"):
        # With `fields`, since whole samples that go from tar to tar are moved without being looked at.
        convert_to(tmp_path, "tar", source="there", shards="x/000000/" if source == "directory" else "**", fields=["bin"])


@pytest.mark.parametrize("options", [{"fields": ["x", "y", "z"]}, {"samples_per_shard": 1, "format": "zip"}])
@pytest.mark.parametrize("source", ["tar", "zip", "directory"])
def test_a_sample_over_the_limit(tmp_path, source, options, monkeypatch):
    put(tmp_path, "x.tar", [("a.x", b"x" * 6000), ("b.x", b"x" * 3000), ("b.y", b"y" * 3000), ("b.z", b"z" * 5000)])
    convert_to(tmp_path, source, out="there")
    for module in (base, reading, corpus, _module("zip")):
        monkeypatch.setattr(module, "JOB_MEMBER_BYTES_MAX", 10_000)
    shards = "x/000000/" if source == "directory" else "**"
    with pytest.raises((FormatError, TarError), match="the sample 'b' is too large to be changed in memory"):
        convert_to(tmp_path, **({"format": "tar"} | options), source="there", shards=shards)


def _module(name: str):
    return __import__(f"dfc.formats.{name}", fromlist=["x"])


def test_too_many_fields(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "FORMAT_FIELDS_MAX", 5)
    put(tmp_path, "x.tar", [(f"a.{number}", b"") for number in range(4)])
    put(tmp_path, "y.tar", [(f"a.{number}", b"") for number in range(3, 7)])
    with pytest.raises(Conflict, match="7 different extensions"):
        convert_to(tmp_path, "parquet")


def test_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "FORMAT_TREE_OBJECTS_MAX", 5)
    for number in range(6):
        put(tmp_path, f"{number}.txt", b"")
    with pytest.raises(BadRequest, match="the directory tree has 6 files"):
        convert_to(tmp_path, "tar")


def test_a_truncated_shard(tmp_path):
    whole = tar_of(samples([str(number) for number in range(40)], txt="x" * 600))
    put(tmp_path, "x.tar", whole[: len(whole) // 2])
    with pytest.raises(NotAShard):
        convert_to(tmp_path, "zip")


def test_nothing_of_the_inputs_is_touched(tmp_path):
    not_shards = shutil.ignore_patterns("*.json", "*.sql", "*-format-*")
    shutil.copytree(DATA, tmp_path / "in", ignore=not_shards)
    before = {path.name: path.read_bytes() for path in (tmp_path / "in").iterdir()}
    convert_to(tmp_path, "tfrecord")
    assert {path.name: path.read_bytes() for path in (tmp_path / "in").iterdir()} == before
