"""Headers and archives that are written: read back by ourselves, by tarfile and by GNU tar, and equal for equal members."""

from __future__ import annotations

import io
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfc.tar.samples import END_OF_ARCHIVE, TarWriter, member_header, padding
from dfc.tar.scanner import Scanner

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=300)
SLASHED = st.lists(st.text("abé", min_size=1, max_size=60), min_size=1, max_size=12).map("/".join)


def test_padding():
    assert [len(padding(size)) for size in (0, 1, 511, 512, 513)] == [0, 511, 1, 0, 511]
    assert len(END_OF_ARCHIVE) == 1024
    assert not any(END_OF_ARCHIVE)


def test_a_plain_header_is_what_the_standard_library_writes():
    info = tarfile.TarInfo("dir/a.jpg")
    info.size = 12345
    theirs = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    theirs[329:345] = bytes(16)  # the numbers of no device, which it writes as octal zeros
    theirs[148:156] = b" " * 8
    theirs[148:156] = b"%06o\x00 " % sum(theirs)
    assert member_header("dir/a.jpg", 12345) == theirs


@given(st.one_of(NAMES, SLASHED), st.sampled_from([0, 1, 8**11 - 1, 8**11, 10**15]))
def test_read_back(name, size):
    header = member_header(name, size)
    assert len(header) % 512 == 0
    entries = Scanner().feed(header)
    assert entries == [(name.encode(), 0, 0, len(header), size)]
    with tarfile.open(fileobj=io.BytesIO(header + bytes(1024)), encoding="utf-8") as tar:
        info = tar.next()
        assert (info.name.rstrip("/"), info.size) == (name.rstrip("/"), size)
        assert (info.mode, info.uid, info.gid, info.mtime, info.uname, info.gname) == (0o644, 0, 0, 0, "", "")


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("a" * 100, 1), ("a" * 101, 3), ("d/" * 60 + "a", 1), ("p" * 155 + "/" + "n" * 100, 1), ("p" * 156 + "/" + "n", 3)],
)
def test_ustar_where_it_fits(name, blocks):
    assert len(member_header(name, 0)) == 512 * blocks
    assert (b"ustar\x0000" in member_header(name, 0)) == (blocks == 1)


@pytest.mark.parametrize(("name", "size"), [("", 0), ("a\0b", 0), ("x" * 4097, 0), ("a", -1), ("a", 1 << 63), ("\udc80", 0)])
def test_what_cannot_be_written(name, size):
    with pytest.raises(ValueError):
        member_header(name, size)


def test_writer(tmp_path):
    members = {"a.txt": b"x" * 1000, "d/" * 99 + "b.txt": b"", "ü" * 200: b"y" * 512}
    path = tmp_path / "w.tar"
    with open(path, "wb") as file, TarWriter(file) as writer:
        for name, data in members.items():
            writer.add(name, data)
    assert path.stat().st_size == writer.size
    listing = subprocess.run(["tar", "--quoting-style=literal", "-tf", path], check=True, capture_output=True)
    assert listing.stdout.decode().splitlines() == list(members)
    extracted = subprocess.run(["tar", "-xOf", path], check=True, capture_output=True).stdout
    assert extracted == b"".join(members.values())


def test_an_archive_that_was_given_up_is_not_closed():
    file = io.BytesIO()

    def give_up() -> None:
        with TarWriter(file) as writer:
            writer.add("short", b"x" * 99)
            raise KeyError

    with pytest.raises(KeyError):
        give_up()
    assert file.getvalue() == member_header("short", 99) + b"x" * 99 + bytes(512 - 99)


def test_closing_twice_writes_one_end():
    file = io.BytesIO()
    writer = TarWriter(file)
    writer.close()
    writer.close()
    assert file.getvalue() == END_OF_ARCHIVE
