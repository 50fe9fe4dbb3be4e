"""Addresses on the command line, sizes, and exit codes."""

from __future__ import annotations

import errno

import pytest

from dfc import errors
from dfc.cli.session import (
    Exit,
    Remote,
    UsageMistake,
    describe,
    exit_for,
    exit_for_all,
    parse_listing,
    parse_remote,
    parse_size,
)
from dfc.errors import BadName, DfcError
from dfc.limits import format_size


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        ("x.tar", Remote(None, "default", "x.tar")),
        ("b/x.tar", Remote(None, "b", "x.tar")),
        ("b/d/x.tar", Remote(None, "b", "d/x.tar")),
        ("b/", Remote(None, "b", "")),
        ("b/d/", Remote(None, "b", "d/")),
        ("b/a%20b", Remote(None, "b", "a%20b")),
        ("http://h/x.tar", Remote("http://h", "default", "x.tar")),
        ("http://h:1/b/x.tar", Remote("http://h:1", "b", "x.tar")),
        ("https://h/b/", Remote("https://h", "b", "")),
        ("http://h/b/d/", Remote("http://h", "b", "d/")),
        ("http://h/b/a%20b", Remote("http://h", "b", "a b")),
        ("http://h/v1/objects/b/d/x", Remote("http://h", "b", "d/x")),
        ("http://h/b/x-{00..10}.tar", Remote("http://h", "b", "x-{00..10}.tar")),
    ],
)
def test_addresses(text: str, remote: Remote) -> None:
    assert parse_remote(text) == remote
    assert remote.is_folder == text.endswith("/")


@pytest.mark.parametrize("text", ["b/../x", "b//x", "/x", "v1/x", "b/x\n", "..", "http://h/../x", "http://h/v1/x", "b/%2e%2e"])
def test_bad_names(text: str) -> None:
    with pytest.raises(BadName):
        parse_remote(text)


@pytest.mark.parametrize("text", ["", "http://", "http://h/b/x?member=1", "http://h/x#y"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(UsageMistake):
        parse_remote(text)


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        ("", Remote(None, "", "")),
        ("b", Remote(None, "b", "")),
        ("b/", Remote(None, "b", "")),
        ("b/pre", Remote(None, "b", "pre")),
        ("b/d/", Remote(None, "b", "d/")),
        ("http://h", Remote("http://h", "", "")),
        ("http://h/", Remote("http://h", "", "")),
        ("http://h/b", Remote("http://h", "b", "")),
        ("http://h/b/d/", Remote("http://h", "b", "d/")),
    ],
)
def test_listings(text: str, remote: Remote) -> None:
    assert parse_listing(text) == remote


def test_names_below_a_folder_are_checked() -> None:
    folder = Remote(None, "b", "d/")
    assert folder.below("x") == Remote(None, "b", "d/x")
    with pytest.raises(BadName):
        folder.below("../x")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1), ("1e9", 10**9), ("500M", 500 * 10**6), ("1.5G", 1_500_000_000), ("64MiB", 64 << 20), ("1Gi", 1 << 30),
        ("2k", 2000), ("2KB", 2000), ("3T", 3 * 10**12),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1X", "M", "nan"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


def test_sizes_for_people() -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "1 kB", 999_499: "999 kB", 999_500: "1 MB", 1.2e9: "1.2 GB", 3e18: "3e+03 PB"}
    assert {size: format_size(size) for size in sizes} == sizes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ObjectNotFound("x"), 3),
        (FileNotFoundError(errno.ENOENT, "x"), 3),
        (errors.Unreachable("x"), 4),
        (errors.Unavailable("x"), 4),
        (errors.ChecksumMismatch("x"), 5),
        (errors.ObjectCorrupt("x"), 5),
        (errors.Unauthorized(), 6),
        (errors.Forbidden("x"), 6),
        (BadName("x"), 2),
        (UsageMistake("x"), 2),
        (errors.NoSpace("x"), 1),
        (PermissionError(errno.EACCES, "x"), 1),
        (BrokenPipeError(), 141),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    assert exit_for(error) == code


def test_exit_codes_of_many() -> None:
    missing, broken = errors.ObjectNotFound("x"), errors.ChecksumMismatch("x")
    assert [exit_for_all(errors) for errors in ([], [missing], [missing, missing], [missing, broken])] == [0, 3, 3, 1]


def test_descriptions() -> None:
    assert describe(errors.NoSpace("full")) == ("no_space", "full")
    assert describe(errors.OutputExists(f"there; {errors.OutputExists.ADVICE}"))[1] == "there; give --overwrite to allow this"
    assert describe(OSError(errno.EACCES, "denied", "file")) == ("os_error", "file: denied")
    assert describe(ZeroDivisionError("oh")) == ("error", "ZeroDivisionError: oh")


def test_every_error_has_an_exit_code() -> None:
    kinds = [kind for kind in DfcError.__subclasses__() if kind.__module__ == DfcError.__module__]
    assert kinds
    assert set(map(exit_for, (kind("x") for kind in kinds))) <= set(Exit)
