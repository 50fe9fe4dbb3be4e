"""Names of buckets and objects: the rules against a slow model of them, and the round trip through a path."""

from __future__ import annotations

import unicodedata
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dfc.errors import BadName
from dfc.names import (
    DEFAULT_BUCKET,
    RESERVED_SEGMENTS,
    ObjectPath,
    check_bucket_name,
    check_object_name,
    object_path,
    parse_object_path,
)

# Mostly the characters that matter, so that clashes are frequent.
NAMES = st.one_of(st.text(max_size=30), st.text(alphabet="./%2eEfF05cCaä\\ \x00\n\x7f\x85\u2028-_", max_size=14))
BUCKETS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True).filter(lambda name: name not in RESERVED_SEGMENTS)


def is_fine(name: str) -> bool:
    """The rules once, written another way."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    controls = any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in name)
    return 1 <= size <= 1024 and not controls and all(segment not in ("", ".", "..") for segment in name.split("/"))


def is_allowed(name: str) -> bool:
    if not is_fine(name):
        return False
    try:
        return is_fine(unquote_to_bytes(name).decode())
    except UnicodeDecodeError:
        return False


def accepted(check, name: str) -> bool:
    try:
        assert check(name) == name
    except BadName:
        return False
    return True


@given(NAMES)
@example("%2e%2e")
@example("%252e")
@example("a/%2e./b")
@example("a%2fb")
@example("a%00")
@example("%ff")
@example("%c3%a4")
@example("100%")
@example("%")
@example("a" * 1025)
@example("ä" * 513)
@example("\ud800")
def test_object_names_against_the_model(name):
    assert accepted(check_object_name, name) == is_allowed(name)


@given(NAMES.filter(is_allowed), BUCKETS)
def test_a_name_survives_its_path(name, bucket):
    path = object_path(bucket, name)
    assert path.isascii()
    assert parse_object_path(path) == ObjectPath(bucket, name)
    assert parse_object_path(f"/{bucket}/{quote(name, safe='')}") == ObjectPath(bucket, name)


@given(st.one_of(NAMES.map(lambda text: f"/{text}"), NAMES))
@example("//")
@example("/../x")
@example("/./x")
@example("/a//")
@example("/%2e%2e/x")
@example("/b/%252e%252e/x")
@example("/%2f")
@example("/b%2fx")
@example("/v1%2fx")
@example("/b/x%zz")
def test_whatever_path_is_taken_gives_names_within_the_rules(raw):
    try:
        bucket, name = parse_object_path(raw)
    except BadName:
        return
    assert raw.startswith("/")
    if raw == "/":
        assert (bucket, name) == ("", "")
        return
    assert check_bucket_name(bucket) == bucket
    assert not name or is_allowed(name)


@pytest.mark.parametrize(
    ("raw", "bucket", "name"),
    [
        ("/x.tar", DEFAULT_BUCKET, "x.tar"),
        ("/b/", "b", ""),
        ("/b/x", "b", "x"),
        ("/b/x/y/z", "b", "x/y/z"),
        ("/b%2Fx", "b", "x"),
        ("/b/x%20y%2Bz+", "b", "x y+z+"),
        ("/b/gr%C3%B6%C3%9Fe", "b", "größe"),
        ("/b/größe", "b", "größe"),
        ("/b/100%25", "b", "100%"),
        ("/b/v1", "b", "v1"),
        ("/b/v1/x", "b", "v1/x"),
    ],
)
def test_paths(raw, bucket, name):
    assert parse_object_path(raw) == ObjectPath(bucket, name)


@pytest.mark.parametrize("segment", sorted(RESERVED_SEGMENTS))
def test_reserved_segments(segment):
    for raw in (f"/{segment}", f"/{segment}/", f"/{segment}/x"):
        with pytest.raises(BadName):
            parse_object_path(raw)
    with pytest.raises(BadName):
        check_bucket_name(segment)
    assert parse_object_path(f"/b/{segment}").name == segment


@pytest.mark.parametrize("name", ["a", "A1", "0", "a.b_c-d", "a" * 63, "a..b", "a-"])
def test_bucket_names(name):
    assert check_bucket_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".a", "-a", "_a", "a/b", "a b", "ä", "a\n", "a" * 64, "a%", "a\x00"])
def test_what_is_no_bucket_name(name):
    with pytest.raises(BadName):
        check_bucket_name(name)


@given(st.text(max_size=70))
def test_bucket_names_are_path_components(name):
    if accepted(check_bucket_name, name):
        assert name.isascii()
        assert "/" not in name
        assert name not in (".", "..")


def test_bytes_that_are_no_utf8_arrive_as_surrogates():
    assert parse_object_path("/b/" + b"gr\xc3\xb6\xc3\x9fe".decode("ascii", "surrogateescape")).name == "größe"
    with pytest.raises(BadName):
        parse_object_path("/b/" + b"\xff".decode("ascii", "surrogateescape"))
