"""Paths of `dfc://`, and its errors as those of a filesystem."""

from __future__ import annotations

import errno

import pytest

from dfc import errors
from dfc.inputs.fsreads import FilePlace, as_os_errors, folders_of, parent_of, place_of, strip_protocol


@pytest.mark.parametrize(
    ("given", "path", "place", "parent"),
    [
        ("dfc://", "", FilePlace("", "", None), ""),
        ("dfc://b/", "b", FilePlace("b", "", None), ""),
        ("dfc:b/o", "b/o", FilePlace("b", "o", None), "b"),
        ("/b/d/o/", "b/d/o", FilePlace("b", "d/o", None), "b/d"),
        ("b/s.tar//", "b/s.tar//", FilePlace("b", "s.tar", ""), "b"),
        ("dfc://b/s.tar//m.jpg", "b/s.tar//m.jpg", FilePlace("b", "s.tar", "m.jpg"), "b/s.tar//"),
        ("dfc://b/s.tar//d/e/", "b/s.tar//d/e", FilePlace("b", "s.tar", "d/e"), "b/s.tar//d"),
        ("dfc://b/s.tar//./m.jpg", "b/s.tar//./m.jpg", FilePlace("b", "s.tar", "./m.jpg"), "b/s.tar//."),
        ("dfc://b/s.tar///abs/m", "b/s.tar///abs/m", FilePlace("b", "s.tar", "/abs/m"), "b/s.tar///abs"),
    ],
)
def test_paths(given: str, path: str, place: FilePlace, parent: str) -> None:
    assert strip_protocol(given) == path
    assert strip_protocol(path) == path
    assert place_of(path) == place
    assert parent_of(path) == parent


@pytest.mark.parametrize("path", ["b//m", "b/../o", "-b/o", "v1/o", "b/o\n"])
def test_paths_of_nothing(path: str) -> None:
    with pytest.raises(errors.BadName):
        place_of(path)


def test_folders_that_names_imply() -> None:
    assert folders_of(["a/b/c", "a/d", "e", "a/b/f"], "") == {"a", "a/b"}
    assert folders_of(["b/a/b/c", "b/x"], "b") == {"b/a", "b/a/b"}


@pytest.mark.parametrize(
    ("problem", "number", "kind"),
    [
        (errors.ObjectNotFound("x"), errno.ENOENT, FileNotFoundError),
        (errors.MemberNotFound("x"), errno.ENOENT, FileNotFoundError),
        (errors.NotAShard("x"), errno.ENOTDIR, NotADirectoryError),
        (errors.Unauthorized(), errno.EACCES, PermissionError),
        (errors.BadName("x"), errno.EINVAL, OSError),
        (errors.BucketNotEmpty("x"), errno.ENOTEMPTY, OSError),
        (errors.PreconditionFailed("x"), errno.ESTALE, OSError),
        (errors.NoSpace("x"), errno.ENOSPC, OSError),
        (errors.Unreachable("x"), errno.ECONNREFUSED, ConnectionRefusedError),
        (errors.Unavailable("x"), errno.EIO, OSError),
        (errors.DfcError("x"), errno.EIO, OSError),
    ],
)
def test_errors_of_the_cluster_become_those_of_a_filesystem(problem: errors.DfcError, number: int, kind: type[OSError]) -> None:
    with pytest.raises(kind) as caught, as_os_errors("b/o"):
        raise problem
    assert (caught.value.errno, caught.value.filename, caught.value.__cause__) == (number, "b/o", problem)
