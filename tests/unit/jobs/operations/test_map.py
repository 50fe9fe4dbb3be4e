"""`map` with its built-in functions: what comes out, in which shards, and what fails."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from folder_store import run_job
from job_shards import job, json_of, members_of, put, samples
from pictures import encoded
from PIL import Image

from dfc.errors import BadRequest, Forbidden
from dfc.formats.base import SplitSample
from dfc.jobs.data.images import MissingLibrary, pillow
from dfc.jobs.data.partitions import DuplicateKey
from dfc.jobs.operations import check_enabled, map
from dfc.jobs.operations.map import MapFailed, seed_of
from dfc.jobs.request import parse_spec

DATA = Path(__file__).parents[3] / "data"


def picture(size=(40, 20), format="PNG", mode="RGB"):
    image = Image.fromarray(np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(size[1], size[0], 3)).convert(mode)
    return encoded(image, format)


def mapped(folder, pattern="m-%03d.tar", twice=False, **options):
    return run_job(folder, job("map", pattern, **options), twice=twice)


def call(name, fields, /, **args):
    (made,) = map.built_in(name, args)(map.WireSample("k", fields))
    return made.fields


def test_one_output_for_each_input_empty_ones_included(tmp_path):
    put(tmp_path, "a.tar", samples("ab", jpg="x", cls="1"))
    put(tmp_path, "b.tar", [])
    put(tmp_path, "c.tgz", samples("cd", cls="2"))
    done = mapped(tmp_path, function="drop", args={"fields": ["CLS"]}, twice=True)
    assert {name: members_of(content) for name, content in done.outputs.items()} == {
        "m-000.tar": [("a.jpg", b"x"), ("b.jpg", b"x")],
        "m-001.tar": [],
        "m-002.tar": [],
    }
    assert done.samples == 2


@pytest.mark.parametrize("name", ["a.tar", "a.tgz"])
@pytest.mark.parametrize("size", [{"samples_per_shard": 3}, {"shard_size": 1024 + 3 * 1024}])
def test_with_a_size_results_are_cut_anew(tmp_path, name, size):
    put(tmp_path, name, samples("abcd", txt="{key}", cls="1"))
    put(tmp_path, "b.tar", samples("efgh", txt="{key}", cls="1"))
    done = mapped(tmp_path, function="drop", args={"fields": ["cls"]}, twice=True, **size)
    assert [[member for member, _ in members_of(done.outputs[output])] for output in sorted(done.outputs)] == [
        ["a.txt", "b.txt", "c.txt"],
        ["d.txt", "e.txt", "f.txt"],
        ["g.txt", "h.txt"],
    ]


def test_sizes_and_compression_of_outputs(tmp_path):
    put(tmp_path, "a.tar", samples("abc", txt="{key}"))
    arguments = {"function": "rename", "args": {"fields": {"txt": "text"}}}
    single = mapped(tmp_path, "x-%d.tgz".replace("%d", "%01d"), **arguments)
    cut = mapped(tmp_path, "y-%01d.tgz", samples_per_shard=100, **arguments)
    assert members_of(single.outputs["x-0.tgz"]) == members_of(cut.outputs["y-0.tgz"]) == samples("abc", text="{key}")
    assert single.outputs["x-0.tgz"][:2] == b"\x1f\x8b"


def test_rename(tmp_path):
    assert call("rename", {"jpeg": b"1", "cls": b"2"}, fields={"JPEG": "jpg"}) == {"jpg": b"1", "cls": b"2"}
    put(tmp_path, "a.tar", samples("ab", jpg="x", png="y"))
    with pytest.raises(MapFailed, match=r"in/a.tar: sample 'a': two of its fields would be named 'png'"):
        mapped(tmp_path, function="rename", args={"fields": {"jpg": "png"}})
    done = mapped(tmp_path, function="rename", args={"prefix": "set/1-"}, samples_per_shard=1)
    assert members_of(done.outputs["m-001.tar"])[0][0] == "set/1-b.jpg"


@pytest.mark.parametrize(
    ("arguments", "size"),
    [({"size": [10, 30]}, (10, 30)), ({"shortest": 10}, (20, 10)), ({"longest": 10}, (10, 5)), ({"longest": 80}, (80, 40))],
)
def test_resize(arguments, size):
    for ext, format in (("png", "PNG"), ("jpg", "JPEG"), ("left.webp", "WEBP")):
        made = Image.open(io.BytesIO(call("resize", {ext: picture(format=format)}, **arguments)[ext]))
        assert (made.size, made.format) == (size, format)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA"])
def test_pictures_of_every_mode(mode):
    data = picture(mode=mode)
    assert Image.open(io.BytesIO(call("resize", {"png": data}, longest=8)["png"])).size == (8, 4)
    assert Image.open(io.BytesIO(call("transcode", {"png": data}, format="jpg")["jpg"])).format == "JPEG"
    assert np.load(io.BytesIO(call("tensor", {"png": data})["npy"])).shape[:2] == (20, 40)


def test_transcode():
    made = call("transcode", {"a.png": picture(), "txt": b"t"}, format="jpg", quality=50)
    assert list(made) == ["a.jpg", "txt"]
    assert len(made["a.jpg"]) < len(call("transcode", {"png": picture()}, format="jpeg", quality=95)["jpeg"])


def test_tensor():
    made = call("tensor", {"png": picture(), "cls": b"1"})
    assert np.array_equal(np.load(io.BytesIO(made["npy"])), np.asarray(Image.open(io.BytesIO(picture()))))
    assert made["cls"] == b"1"
    assert np.load(io.BytesIO(call("tensor", {"png": picture(mode="L")})["npy"])).shape == (20, 40)


def test_only_the_fields_that_are_meant():
    made = call("tensor", {"png": picture(), "b.png": picture()}, fields=["b.png"])
    assert list(made) == ["png", "b.npy"]


def test_real_shards(tmp_path):
    put(tmp_path, "sample.tgz", (DATA / "sample.tgz").read_bytes())
    done = mapped(tmp_path, function="tensor")
    names = [name for name, _ in members_of(done.outputs["m-000.tar"])]
    assert names[:2] == ["10.cls", "10.npy"]
    assert done.samples == 90


def test_errors_end_the_job_or_are_left_out_or_reported(tmp_path):
    put(tmp_path, "a.tar", [("a.png", picture()), ("b.png", b"bad"), ("c.json", b"{")])
    put(tmp_path, "b.tar", [("d.png", picture())])
    with pytest.raises(MapFailed, match=r"in/a.tar: sample 'b': field 'png': not a picture"):
        mapped(tmp_path, function="decode-check")
    done = mapped(tmp_path, function="decode-check", on_error="skip", twice=True)
    assert [name for name, _ in members_of(done.outputs["m-000.tar"])] == ["a.png"]
    assert len(done.warnings) == 1
    assert "in/a.tar: 2 samples failed and were left out, the first one 'b': field 'png'" in done.warnings[0]
    done = mapped(tmp_path, function="decode-check", on_error="report", samples_per_shard=1, twice=True)
    assert set(done.outputs) == {"m-000.tar", "m-001.tar", "m-errors.ndjson"}
    lines = [json_of(line) for line in done.outputs["m-errors.ndjson"].splitlines()]
    assert [(line["shard"], line["key"]) for line in lines] == [("in/a.tar", "b"), ("in/a.tar", "c")]


def test_the_report_is_among_the_outputs_that_must_not_be_there():
    def pattern(**options):
        return parse_spec(msgspec.json.encode(job("map", "m-%03d.tar", function="decode-check", **options))).pattern

    assert pattern(on_error="report").matches("m-errors.ndjson")
    assert not pattern(on_error="skip").matches("m-errors.ndjson")


def test_a_bomb_is_no_picture(tmp_path):
    put(tmp_path, "a.tar", [("a.png", encoded(Image.new("L", (20_000, 20_000))))])
    with pytest.raises(MapFailed, match="more than 67108864 pixels is too large"):
        mapped(tmp_path, function="resize", args={"longest": 10})
    put(tmp_path, "a.tar", [("a.png", picture())])
    with pytest.raises(MapFailed, match="60000 x 60000 pixels"):
        mapped(tmp_path, function="resize", args={"size": [60_000, 60_000]})


def test_without_pillow_the_job_says_what_to_install(tmp_path, monkeypatch):
    put(tmp_path, "a.tar", [("a.png", picture())])
    pillow.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingLibrary, match="pip install Pillow"):
        mapped(tmp_path, function="tensor")


def test_a_key_comes_out_once_only(tmp_path):
    put(tmp_path, "a.tar", samples("abc", txt="x"))
    put(tmp_path, "b.tar", samples("cde", txt="x"))
    with pytest.raises(DuplicateKey, match=r"two output samples have the key 'c', from input shards 0 and 1"):
        mapped(tmp_path, function="drop", args={"fields": []})
    assert mapped(tmp_path, function="drop", args={"fields": []}, unique="shard").samples == 6


@pytest.mark.parametrize("unique", ["dataset", "shard"])
def test_a_split_sample_fails_or_is_joined_or_gives_the_key_twice(tmp_path, unique):
    put(tmp_path, "a.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3")])
    arguments = {"function": "drop", "args": {"fields": []}, "unique": unique}
    with pytest.raises(SplitSample, match="'a' occurs again"):
        mapped(tmp_path, **arguments)
    done = mapped(tmp_path, on_split="join", **arguments)
    assert members_of(done.outputs["m-000.tar"]) == [("a.jpg", b"1"), ("a.cls", b"3"), ("b.jpg", b"2")]
    with pytest.raises(DuplicateKey, match="two output samples have the key 'a'"):
        mapped(tmp_path, on_split="keep", **arguments)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"function": "drop"},
        {"function": "drop", "args": {"fields": "cls"}},
        {"function": "drop", "args": {"fields": [], "field": 1}},
        {"function": "rename", "args": {}},
        {"function": "resize", "args": {}},
        {"function": "resize", "args": {"size": [1, 2], "longest": 3}},
        {"function": "resize", "args": {"size": [0, 2]}},
        {"function": "transcode", "args": {"format": "eps"}},
        {"function": "transcode", "args": {"format": "jpg", "quality": 101}},
        {"function": "tensor", "command": ["true"]},
        {"command": []},
        {"command": [""]},
        {"command": ["a\0b"]},
        {"command": ["true"], "args": {"a": 1}},
        {"function": "tensor", "timeout": 0},
        {"function": "tensor", "on_error": "ignore"},
        {"function": "tensor", "samples_per_shard": 1, "shard_size": 1},
    ],
)
def test_bad_options(tmp_path, options):
    with pytest.raises(BadRequest):
        mapped(tmp_path, **options)


def test_code_of_users_is_off_until_the_operator_turns_it_on():
    class Off:
        jobs_user_functions = jobs_user_commands = False

    class On:
        jobs_user_functions = jobs_user_commands = True

    def enabled(settings, **options):
        spec = parse_spec(msgspec.json.encode(job("map", "m-%03d.tar", **options)))
        check_enabled("map", spec.options, settings)

    enabled(Off, function="tensor")
    for options, setting in (({"function": "mine"}, "jobs_user_functions"), ({"command": ["true"]}, "jobs_user_commands")):
        with pytest.raises(Forbidden, match=setting):
            enabled(Off, **options)
        enabled(On, **options)


def test_seeds_differ_by_seed_and_ordinal():
    assert len({seed_of(seed, ordinal) for seed in range(30) for ordinal in range(30)}) == 900
    assert seed_of(1, 2) == 571542372673154031
