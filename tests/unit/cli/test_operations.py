"""Commands of operations: flags from their options, and what a word on the command line becomes."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from typer.core import TyperCommand

from dfc.cli import main
from dfc.cli.operations import describe_type, given_options, operation_commands, parse_pairs, read_option
from dfc.cli.session import UsageMistake
from dfc.jobs.operations import OPERATIONS, operation
from dfc.jobs.spec import InputSpec

Count = Annotated[int, msgspec.Meta(ge=1)]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "7", 7),
        (Count | None, "7", 7),
        (float, "0.5", 0.5),
        (str, "7", "7"),
        (str, "a=b,c", "a=b,c"),
        (str, "[0-9]+", "[0-9]+"),
        (int | str | None, "1 GB", "1 GB"),
        (Literal["auto", "gather"], "gather", "gather"),
        (list[str], "jpg,cls", ["jpg", "cls"]),
        (tuple[str, ...] | None, "jpg", ["jpg"]),
        (list[int], "1,2", [1, 2]),
        (list[str], '["a,b"]', ["a,b"]),
        (dict[str, float], "train=0.9,val=0.1", {"train": 0.9, "val": 0.1}),
        (dict[str, Any], '{"a": [1]}', {"a": [1]}),
        (InputSpec | str, '{"bucket": "b"}', {"bucket": "b", "shards": "**"}),
        (InputSpec, "b/s-*.tar", {"bucket": "b", "shards": "s-*.tar"}),
        (bool, True, True),
    ],
)
def test_words_become_options(kind, text, value):
    found = read_option("x", kind, text)
    assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize(("kind", "text"), [(int, "x"), (Count, "0"), (Literal["a", "b"], "c"), (dict[str, float], "a=b")])
def test_words_that_do_not_fit(kind, text):
    with pytest.raises(UsageMistake, match="--some-option must be"):
        read_option("some_option", kind, text)


def test_options_as_json():
    assert parse_pairs(["a=1", 'b={"c": [2]}', "d=text", "e=x=y"]) == {"a": 1, "b": {"c": [2]}, "d": "text", "e": "x=y"}
    for wrong in ("a", "=1"):
        with pytest.raises(UsageMistake):
            parse_pairs([wrong])


def test_flags_and_json_together():
    values = {"option_seed": "5", "option_samples_per_shard": None, "option": ["strategy=spill"]}
    assert given_options("reshuffle", values) == {"seed": 5, "strategy": "spill"}


def test_how_types_are_named():
    kinds = (Count, int | str | None, list[str], dict[str, float], Literal["a", "b"], Any, bool)
    assert [describe_type(kind) for kind in kinds] == ["int", "int|text", "text,…", "name=value,…", "a|b", "JSON", "yes|no"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_a_command_with_its_options(name, dfc):
    shown = dfc(name, "--help")
    assert shown.code == 0, shown
    if name != "keys":
        assert name in [command.name for command in operation_commands()]
        assert "--overwrite" in shown.out
        assert "--on-split" in shown.out or name in ("convert", "validate")
    assert dfc(name).code == 2


def test_every_option_says_what_it_does(dfc):
    for name in OPERATIONS:
        for field in msgspec.structs.fields(operation(name).Options):
            said = [each.description for each in getattr(field.type, "__metadata__", ()) if each.description]
            assert len(said) == 1, f"{name}: {field.name}"
            assert said[0].endswith((".", "…")), f"{name}: {field.name}"
    shown = " ".join(dfc("reshuffle", "--help").out.replace("│", " ").split())
    for words in ("the rest in the last one.", "occurs again later in its shard. (default fail)", "(default auto)"):
        assert words in shown
    assert "(required)" in dfc("convert", "--help").out


def test_what_is_sent(dfc, fake):
    """The fake knows no jobs: its answer shows only that the command has asked."""
    asked = dfc("reshuffle", "in/s-*.tar", "out/r-%06d.tar", "--seed", "1", "--json")
    assert asked.code != 0
    assert json.loads(asked.err)["error"]["code"]
    mixed = dfc("reshuffle", "http://a:1/in/s", "out/r-%06d.tar")
    assert (mixed.code, "one cluster" in mixed.err) == (2, True)


def test_no_operation_takes_the_name_of_another_command(monkeypatch):
    monkeypatch.setattr(main, "operation_commands", lambda: [TyperCommand("sample")])
    with pytest.raises(ValueError, match="dfc has a command 'sample' already"):
        main.ProgramGroup(name="dfc", commands={"sample": TyperCommand("sample")})
