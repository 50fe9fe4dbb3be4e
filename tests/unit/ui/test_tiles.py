"""What the address of a page about a shard may say, and how it is asked to show samples."""

from __future__ import annotations

import pytest

from dfc.errors import BadName, BadRequest
from dfc.limits import OBJECT_NAME_BYTES_MAX, SAMPLE_FIELDS_SHOWN_MAX
from dfc.proxy.samples import FieldPlace, SampleRow, ShardFacts
from dfc.ui.pages.samples import EXT_CHARS_MAX, SHOWN_MAX, ShownPlace, TileStyle, place_of, short, style_of, tile_of, toggles_of
from dfc.ui.words import above, dataset_above


def test_a_style_and_its_address() -> None:
    assert style_of({}) == TileStyle(192, ())
    assert style_of({"pixels": "", "fields": " , "}).query == {}
    style = style_of({"pixels": "384", "fields": "JPG, cls,jpg"})
    assert style == TileStyle(384, ("jpg", "cls"))
    assert style_of(style.query) == style


def test_only_the_fields_that_are_chosen() -> None:
    row = SampleRow("a", {"jpg": FieldPlace(512, 9), "cls": FieldPlace(2048, 1)})
    assert list(TileStyle(192, ("cls", "txt")).of(row).members) == ["cls"]
    assert TileStyle().of(row) == row


@pytest.mark.parametrize("query", [{"pixels": "97"}, {"pixels": "x"}, {"fields": ",".join(map(str, range(SHOWN_MAX + 1)))}])
def test_what_cannot_be_asked(query: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        style_of(query)


def test_of_thousands_of_fields_some_are_shown_and_the_others_counted() -> None:
    row = SampleRow("a", {f"{number}{'x' * 100}": FieldPlace(512 * number, 1) for number in range(4000)})
    assert len(TileStyle().of(row).members) == SAMPLE_FIELDS_SHOWN_MAX
    last = f"3999{'x' * 100}"
    assert list(TileStyle(192, (last, "0" + "x" * 100, "none")).of(row).members) == ["0" + "x" * 100, last], "in their order"
    tile = tile_of("b", ShardFacts("s.tar", 0, "", "", "", 1), 0, row, [], has_pictures=True, style=TileStyle())
    assert (len(tile.fields), tile.more) == (SAMPLE_FIELDS_SHOWN_MAX, 4000 - SAMPLE_FIELDS_SHOWN_MAX)
    assert max(len(ext) for ext, _ in tile.fields) == EXT_CHARS_MAX + 1
    assert short("jpg") == "jpg"


def test_fields_are_chosen_one_by_one() -> None:
    rows = [SampleRow("a", {"jpg": FieldPlace(512, 9), "cls": FieldPlace(2048, 1), "odd,name": FieldPlace(4096, 1)})]
    place = ShownPlace("b", "x-00.tar", 60)
    chosen = toggles_of(place, TileStyle(384, ("jpg",)), rows)
    assert [(ext, is_chosen) for ext, _, is_chosen in chosen] == [("cls", False), ("jpg", True)]  # a comma cannot be asked for
    assert [address for _, address, _ in chosen] == [
        "/ui/shard?bucket=b&object=x-00.tar&start=60&pixels=384&fields=jpg%2Ccls",
        "/ui/shard?bucket=b&object=x-00.tar&start=60&pixels=384",
    ]
    full = TileStyle(384, ("jpg", *map(str, range(SHOWN_MAX - 1))))
    assert [ext for ext, _, _ in toggles_of(place, full, rows)] == ["jpg"], "one more could not be asked for"


def test_the_folders_above_a_prefix_are_as_many_as_a_name_can_have() -> None:
    assert above("b", "a/b/c") == [
        ("b", "/ui/buckets/b"), ("a/", "/ui/buckets/b?prefix=a%2F"), ("b/", "/ui/buckets/b?prefix=a%2Fb%2F"),
    ]  # fmt: skip
    assert len(above("b", "/" * 16_000)) == 1 + OBJECT_NAME_BYTES_MAX


def test_a_shard_leads_to_its_dataset() -> None:
    assert dataset_above("b", "set/x-007.tar") == ("x-*.tar", "/ui/dataset?bucket=b&shards=set%2Fx-%7B000..999%7D.tar")
    assert dataset_above("b", "set/x.tar")[1] == "/ui/dataset?bucket=b&shards=set%2Fx.tar"


def test_what_is_named_and_what_templates_are_told() -> None:
    query = {"bucket": "b", "object": "x/a b.tar", "start": "7"}
    place = place_of(query, "start")
    assert place == ShownPlace("b", "x/a b.tar", 7)
    assert place_of(query, "number").ordinal == place_of({**query, "start": ""}, "start").ordinal == 0
    assert place.shown == {
        "bucket": "b",
        "name": "x/a b.tar",
        "folders": [("b", "/ui/buckets/b"), ("x/", "/ui/buckets/b?prefix=x%2F")],
        "url": "/b/x/a%20b.tar",
    }


@pytest.mark.parametrize("start", ["-1", "1.5", "x", "١", "1" * 16, " 1"])
def test_ordinals_are_short_decimal_numbers(start: str) -> None:
    with pytest.raises(BadRequest, match="start must be a number from 0"):
        place_of({"bucket": "b", "object": "x", "start": start}, "start")


@pytest.mark.parametrize("query", [{}, {"bucket": "b"}, {"object": "x"}])
def test_both_must_be_named(query: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match="a bucket and an object"):
        place_of(query, "start")


@pytest.mark.parametrize("query", [{"bucket": "../b", "object": "x"}, {"bucket": "b", "object": "x/../y"}])
def test_names_are_checked(query: dict[str, str]) -> None:
    with pytest.raises(BadName):
        place_of(query, "start")
