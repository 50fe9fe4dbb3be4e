"""The form for a job: fields from schemas, the job from what was entered, errors at their field, and the same for a shell."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import msgspec
import pytest

from dfc.cli.jobs import _spec
from dfc.config import Settings
from dfc.errors import BadRequest, BadShardSpec, DfcError, NoShards, OutputExists
from dfc.jobs.operations import OPERATIONS
from dfc.jobs.request import all_operations, parse_spec
from dfc.limits import FORM_BYTES_MAX, FORM_FIELDS_MAX
from dfc.ui.jobfacts import field_of, job_entered, operation_of, option_fields, values_of
from dfc.ui.snippets import same_job
from dfc.ui.words import escaped

INFOS = {each.name: each for each in all_operations(Settings())}
FIELDS = {name: {field.option: field for field in option_fields(info.options)} for name, info in INFOS.items()}
VALUES = {"bucket": "in", "shards": "s-*.tar", "output_bucket": "out", "pattern": "r-%06d.tar"}
# Texts that are out to break out of something: quotes of shells, HTML, JSON; what cannot be seen; what looks like a flag.
HOSTILE = (
    "'; touch /tmp/owned; '", '"$(id)"`id`', "--overwrite", "\\", "a\nb", "\u202egnp.exe", "a\u200bb\U000e0041",
    "<script>alert(1)</script>",     "x\x00y", "%s %d", "!!", "=x=y",
)  # fmt: skip


def entered(name: str, **values: str) -> Any:
    job = job_entered(INFOS[name], {**VALUES, **values})
    assert job.problems == {}
    return msgspec.json.decode(job.spec)


def test_fields_are_of_the_kinds_that_options_have() -> None:
    kinds = {f"{name}.{option}": field.kind for name in OPERATIONS for option, field in FIELDS[name].items()}
    assert kinds["reshuffle.seed"] == kinds["select.fraction"] == kinds["split.folds"] == "number"
    assert kinds["reshuffle.on_split"] == kinds["validate.repair"] == kinds["convert.from"] == "choice"
    assert kinds["reshuffle.shard_size"] == kinds["select.key_regex"] == "text"
    assert kinds["join.with"] == kinds["map.args"] == kinds["merge.weights"] == kinds["keys.fields"] == "json"
    seed, timeout = FIELDS["reshuffle"]["seed"], FIELDS["map"]["timeout"]
    assert (seed.default, seed.least, seed.most, seed.step, seed.example) == ("0", "0", str(2**63 - 1), "1", "42")
    assert (timeout.default, timeout.least, timeout.most, timeout.step) == ("60.0", "0", "86400.0", "any")
    assert FIELDS["validate"]["decode"].choices == ("true", "false")
    assert FIELDS["convert"]["format"].required
    assert next(iter(FIELDS["convert"])) == "format", "what is required comes first"
    assert all(field.about and field.example and field.words for fields in FIELDS.values() for field in fields.values())
    assert max(map(len, FIELDS.values())) + 10 < FORM_FIELDS_MAX


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_example_of_every_field_is_taken_and_comes_back(name: str) -> None:
    info = INFOS[name]
    for option, field in FIELDS[name].items():
        needed = {each.name: each.example for each in FIELDS[name].values() if each.required}
        values = {**VALUES, **needed, field.name: field.example}
        job = job_entered(info, values)
        assert job.problems == {}
        options = msgspec.json.decode(job.spec)["options"]
        assert options[option] == info.options["properties"][option]["examples"][0]
        again = {key: value for key, value in values_of(job.spec, info).items() if value}
        assert again == values
        assert operation_of(job.spec) == name


def test_own_options_come_before_those_of_all_and_known_functions_are_proposed() -> None:
    names = list(FIELDS["sort"])
    assert names[-1] == "on_split"
    assert names[0] != "on_split"
    assert {"resize", "transcode"} <= set(FIELDS["map"]["function"].known)
    assert FIELDS["map"]["command"].known == ()


def test_what_is_empty_is_not_given() -> None:
    assert entered("reshuffle", shards="", **{"option.seed": " ", "option.on_split": ""}) == {
        "operation": "reshuffle", "input": {"bucket": "in", "shards": "**"},
        "output": {"bucket": "out", "pattern": "r-%06d.tar"},
    }  # fmt: skip
    whole = entered("reshuffle", overwrite="on", label="l", **{"option.seed": "007", "option.shard_size": "1000"})
    assert (whole["overwrite"], whole["label"], whole["options"]) == (True, "l", {"seed": 7, "shard_size": 1000})
    assert entered("reshuffle", **{"option.shard_size": "1 GB"})["options"] == {"shard_size": "1 GB"}
    assert entered("sort", **{"option.by": "7"})["options"] == {"by": "7"}
    assert entered("select", **{"option.key_regex": " a "})["options"] == {"key_regex": " a "}
    assert entered("validate", **{"option.repair": "true"})["options"] == {"repair": True}
    assert entered("select", **{"option.fraction": "1e-3"})["options"] == {"fraction": 0.001}
    assert json.loads(job_entered(INFOS["keys"], VALUES, dry_run=True).spec)["dry_run"] is True


def test_several_inputs() -> None:
    found = entered("merge", more="other/x-*.tar\r\n third/\n\n")
    assert found["input"] == [
        {"bucket": "in", "shards": "s-*.tar"}, {"bucket": "other", "shards": "x-*.tar"}, {"bucket": "third", "shards": "**"},
    ]  # fmt: skip
    assert isinstance(entered("reshuffle", more="other/x.tar")["input"], dict), "only where there may be several"
    assert job_entered(INFOS["merge"], {**VALUES, "more": "no slash"}).problems.keys() == {"more"}


def test_what_the_form_itself_finds_wrong() -> None:
    assert job_entered(INFOS["join"], {}).problems.keys() == {"bucket", "output_bucket", "pattern", "option.with"}
    for text in ("{", "not json", "[1] 2", "[" * 50_000, "NaN", '{"a": 1}}', '1, "x": 2'):
        found = job_entered(INFOS["map"], {**VALUES, "option.args": text})
        assert found.problems.keys() == {"option.args"}, text[:20]
        assert "this is not JSON" in found.problems["option.args"]
        assert msgspec.json.decode(found.spec), "what is wrong does not get into the job"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_leaves_its_place(text: str) -> None:
    places = ("bucket", "shards", "output_bucket", "pattern", "label", "option.by")
    found = json.loads(job_entered(INFOS["sort"], dict.fromkeys(places, text)).spec)
    assert found.keys() == {"operation", "input", "output", "label", "options"}
    assert found["input"]["shards"] == found["output"]["pattern"] == found["label"] == text
    assert found["options"] == {"by": text}


@pytest.mark.parametrize(
    ("name", "values", "place"),
    [
        ("reshuffle", {"option.seed": "abc"}, "option.seed"),
        ("reshuffle", {"option.seed": "-1"}, "option.seed"),
        ("reshuffle", {"option.samples_per_shard": "5", "option.shard_size": "1 GB"}, "option.samples_per_shard"),
        ("reshuffle", {"option.on_split": "no-such"}, "option.on_split"),
        ("reshuffle", {"pattern": "one.tar"}, "pattern"),
        ("reshuffle", {"shards": "{1..2"}, "shards"),
        ("reshuffle", {"label": "x" * 300}, "label"),
        ("reshuffle", {"option.shard_size": "much"}, ""),
        ("split", {"pattern": "{part}-%06d.tar", "option.parts": '{"a": 2}'}, "option.parts"),
        ("select", {"option.predicate": '{"field": 1}'}, "option.predicate"),
        ("convert", {"option.format": "tar", "option.fields": '["A"]'}, "option.fields"),
        ("dedup", {"option.by": "nothing"}, "option.by"),
        ("validate", {"option.decode": "perhaps", "pattern": "r.json"}, "option.decode"),
        ("map", {}, ""),
    ],
)
def test_errors_of_the_server_are_shown_at_the_field(name: str, values: dict[str, str], place: str) -> None:
    job = job_entered(INFOS[name], {**VALUES, **values})
    assert job.problems == {}
    with pytest.raises(DfcError) as raised:
        parse_spec(job.spec)
    assert field_of(raised.value, INFOS[name]) == place


def test_errors_that_name_no_field() -> None:
    info = INFOS["reshuffle"]
    assert field_of(NoShards("nothing"), info) == "shards"
    assert field_of(OutputExists("there is one"), info) == "pattern"
    assert field_of(BadShardSpec("{"), INFOS["join"]) == "", "it may be the other side"
    assert field_of(BadRequest("invalid job: Expected `str` - at `$.output.bucket`"), info) == "output_bucket"
    assert field_of(BadRequest("invalid job: Object missing required field `input`"), info) == ""
    missing = BadRequest("invalid options for convert: Object missing required field `format`")
    assert field_of(missing, INFOS["convert"]) == "option.format"


def test_jobs_that_did_not_come_from_a_form() -> None:
    info = INFOS["merge"]
    spec = {
        "operation": "merge", "input": [{"bucket": "a", "shards": ["x.tar", "y.tar"]}, {"bucket": "b"}], "label": "l",
        "output": {"bucket": "c", "pattern": "m-%06d.tar"}, "options": {"weights": [1, 2.5], "shard_size": 5, "prefix": None},
    }  # fmt: skip
    values = values_of(json.dumps(spec).encode(), info)
    assert values["shards"] == '["x.tar","y.tar"]', "shard specs know a list as JSON"
    assert (values["more"], values["option.weights"], values["option.shard_size"]) == ("b/**", "[1,2.5]", "5")
    assert "option.prefix" not in values
    assert msgspec.json.decode(job_entered(info, values).spec)["options"] == {"weights": [1, 2.5], "shard_size": 5}
    parse_spec(job_entered(info, values).spec)


@pytest.mark.parametrize(
    "spec",
    [
        b"", b"[]", b"\xff", b'{"operation": "keys"}', b"[" * 100_000,
        b'{"operation": "keys", "input": [{"bucket": "a"}, {"bucket": "b"}], "output": {"bucket": "c", "pattern": "p"}}',
        b'{"operation": "keys", "input": {"bucket": "a"}, "output": {"bucket": "c", "pattern": "p"}, "options": {"gone": 1}}',
        b'{"operation": "keys", "input": {"bucket": "a"}, "output": {"bucket": "c", "pattern": "p"}, "options": 7}',
    ],
)  # fmt: skip
def test_jobs_that_no_form_can_show(spec: bytes) -> None:
    with pytest.raises(BadRequest):
        values_of(spec, INFOS["keys"])


def test_a_job_that_is_longer_than_a_form() -> None:
    names = [f"s-{number:06}.tar" for number in range(FORM_BYTES_MAX // 10)]
    spec = {"operation": "keys", "input": {"bucket": "a", "shards": names}, "output": {"bucket": "c", "pattern": "p"}}
    with pytest.raises(BadRequest, match="too long for a form"):
        values_of(json.dumps(spec).encode(), INFOS["keys"])


def read_by_shell(line: str, directory: Any) -> list[str]:
    """The words that a POSIX shell makes of a line; whatever it would run besides is found in the directory."""
    script = f"curl() {{ printf '%s\\0' \"$@\"; }}; {line}"
    ran = subprocess.run(
        ["/bin/sh", "-c", script], capture_output=True, cwd=directory, check=True, timeout=20, env={"PATH": "/usr/bin:/bin"}
    )
    assert list(directory.iterdir()) == []
    return ran.stdout.decode().split("\0")


@pytest.mark.parametrize("text", HOSTILE)
def test_lines_for_a_shell_mean_what_was_entered(text: str, tmp_path: Any) -> None:
    values = {**VALUES, "shards": text, "label": text, "overwrite": "on", "option.by": text, "option.reverse": "true"}
    spec = job_entered(INFOS["sort"], values).spec
    wanted, same = json.loads(spec), same_job(spec)
    assert json.loads(same.json) == wanted
    assert escaped(same.json) == same.json, "nothing in it is hidden"
    arguments = read_by_shell(same.curl, tmp_path)
    assert arguments[0] == "-d"
    assert json.loads(arguments[1]) == wanted
    if same.command.startswith("printf"):
        printf, sent = shlex.split(same.command.partition(" | ")[0])[0], shlex.split(same.command)[2]
        assert (printf, same.command.endswith(" | dfc job run -")) == ("printf", True)
        assert json.loads(sent) == wanted
    else:
        words = shlex.split(same.command.replace("\\\n", ""))
        assert words[:3] == ["dfc", "job", "run"]
        flags = [word.partition("=")[::2] for word in words[3:]]
        given = {name: [value for flag, value in flags if flag == name] for name, _ in flags}
        made = _spec(
            "", given["--operation"][0], given["--input"], given["--output"][0], given["--option"],
            given.get("--label", [""])[0], "--overwrite" in given,
        )  # fmt: skip
        assert made == wanted


def test_json_that_cannot_be_seen_is_escaped() -> None:
    for text in HOSTILE:
        encoded = json.dumps({"a": text}, ensure_ascii=False)
        assert json.loads(escaped(encoded)) == {"a": text}
    assert escaped('"\u202e\U000e0041ä"') == '"\\u202e\\udb40\\udc41ä"'
