"""What is said about operations: every option with a description and an example, and the same as on the page about jobs."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from unit.jobs.test_documented import SECTIONS, SIZES

from dfc.config import Settings
from dfc.jobs.operations import OPERATIONS, operation
from dfc.jobs.operations.map import BUILT_IN
from dfc.jobs.request import all_operations, type_words
from dfc.wire.objects import OperationInfo

ALL: dict[str, OperationInfo] = {each.name: each for each in all_operations(Settings(jobs_user_commands=True))}
OPTIONS = [(name, option) for name in OPERATIONS for option in ALL[name].options["properties"]]
DEFAULTS = (  # how the page says which value is the default
    r"`([^`]+)` \(default\)",
    r"`([^`]+)` \(the default\)",
    r"`([^`]+)`, the default\b",
    r"\bby default `([^`]+)`",
    r"\b(\d+) by default\b",
    r"\(`([^`]+)`, default\)",
)


def test_all_operations_are_there_with_a_sentence() -> None:
    assert tuple(ALL) == OPERATIONS
    for each in ALL.values():
        assert re.fullmatch(r"[A-Z].{20,180}\.", each.summary), each.name
        assert each.description.startswith(each.summary)
    assert [name for name in ALL if ALL[name].takes_many] == ["merge"]
    assert [name for name in ALL if ALL[name].takes_any_object] == ["convert", "validate"]


def test_a_schema_is_that_of_an_object_and_encodes() -> None:
    for each in ALL.values():
        schema = json.loads(msgspec.json.encode(each.options))
        assert schema["type"] == "object"
        assert schema["additionalProperties"] is False
        assert set(schema["properties"]) == {f.encode_name for f in msgspec.structs.fields(operation(each.name).Options)}
        referred = set(re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(schema)))
        assert referred == set(schema.get("$defs", {}))
    assert "with" in ALL["join"].options["required"]
    assert ALL["map"].options["properties"]["timeout"]["maximum"] == 86400


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_has_a_description_and_an_example_that_it_takes(name: str, option: str) -> None:
    schema = ALL[name].options["properties"][option]
    assert re.match(r"[A-Za-z].{8,}", schema["description"])
    (example,) = schema["examples"]
    (field,) = [f for f in msgspec.structs.fields(operation(name).Options) if f.encode_name == option]
    taken = msgspec.json.decode(json.dumps(example), type=field.type)
    assert json.loads(msgspec.json.encode(taken)) == example
    assert example != schema.get("default"), "the default is shown anyway"


def test_settings_that_a_job_may_need_are_those_that_it_is_refused_for() -> None:
    found = {each.name: (each.when, each.on) for each in ALL["map"].settings}
    assert found == {
        "jobs_user_functions": ("a function that is not built in", False),
        "jobs_user_commands": ("a command", True),
    }
    options = operation("map").Options
    needs = operation("map").needs  # type: ignore[attr-defined]
    cases = [options(function="x"), options(command=["x"]), *(options(function=each) for each in BUILT_IN)]
    assert {each for case in cases for each in needs(case)} == set(found)
    assert [name for name in OPERATIONS if hasattr(operation(name), "needs")] == [
        name for name in OPERATIONS if hasattr(operation(name), "MAY_NEED")
    ]


def test_a_setting_that_does_not_exist_would_be_found() -> None:
    with pytest.raises(AttributeError):
        all_operations(SimpleNamespace())


# --- the page


def documented(text: str) -> dict[str, str]:
    """Options in the tables of a section, and those that are listed in a sentence, with what is said about them."""
    found: dict[str, str] = {}
    for table in re.findall(r"^\| option \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines():
            first, _, rest = row[1:].partition(" | ")
            found |= dict.fromkeys(names_in(first), rest)
    for sentence in re.findall(r"(?:Options:|In addition:)[^.]*", text):
        found |= dict.fromkeys(names_in(re.sub(r"\(?\bas for `\w+`|except that.*", "", sentence, flags=re.DOTALL)), "")
    return found


def names_in(text: str) -> set[str]:
    found = set(re.findall(r"`([\w]+)`", text))
    return found | SIZES if re.search(r"\bsizes\b", text) else found


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_tables_of_the_page_are_the_options(name: str) -> None:
    properties: dict[str, Any] = ALL[name].options["properties"]
    said = documented(SECTIONS[name])
    assert set(said) == set(properties)
    for option, text in said.items():
        stated = [value for pattern in DEFAULTS for value in re.findall(pattern, text)]
        default = properties[option].get("default")
        if stated:
            assert stated[0] == (default if isinstance(default, str) else f"{default:g}"), option


def test_stated_defaults_are_found() -> None:
    stated = {
        (name, option): value
        for name in OPERATIONS
        for option, text in documented(SECTIONS[name]).items()
        for pattern in DEFAULTS
        for value in re.findall(pattern, text)[:1]
    }
    assert stated[("reshuffle", "seed")] == "0"
    assert stated[("reshuffle", "strategy")] == "auto"
    assert stated[("map", "on_error")] == "abort"
    assert stated[("join", "key")] == "__key__"
    assert len(stated) >= 10


def test_types_in_words() -> None:
    words = {option: type_words(ALL[name].options["properties"][option]) for name, option in OPTIONS}
    assert words["seed"] == "whole number"
    assert words["shard_size"] == "whole number or text"
    assert words["on_split"] == "fail, join, keep"
    assert words["parts"] == words["args"] == words["predicate"] == words["with"] == "object"
    assert words["command"] == "list"
    assert words["repair"] == "true or false"
    assert words["fraction"] == "number"
