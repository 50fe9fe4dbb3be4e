"""Archives as the tools write them: GNU tar, bsdtar and Python's tarfile with their options, star and Solaris by hand; gzip,
bzip2, xz, lz4 and zstd around them; what people find behind and instead of their ends. And what bsdtar and GNU tar list.

star has no package in Debian's main archive: its headers are written here by the layout in its star(5).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import struct
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import lz4.frame

from dfc.tar.compression import zstd

BLOCK: Final = 512
END: Final = bytes(2 * BLOCK)
_ENVIRONMENT: Final = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PATH": os.environ["PATH"]}
_ESCAPE: Final = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
COMPRESS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gz": gzip.compress, "zst": zstd.compress, "lz4": lz4.frame.compress, "bz2": bz2.compress, "xz": lzma.compress,
}  # fmt: skip
_LETTERS: Final = dict(zip(b"abfnrtv0", b"\a\b\f\n\r\t\v\0", strict=True))
_TIME: Final = "@1700000000"
_NOISE: Final = bytes((number * number + 7 * number) % 251 for number in range(4000))

FILES: Final = {
    "a/0001.jpg": _NOISE[:700],
    "a/0001.cls": b"7",
    "a/0002.jpg": _NOISE[100:1700],
    "a/0002.cls": b"",
    "a/README": b"no sample",
    "a/" + "d" * 60 + "/" + "e" * 60 + "/0003.txt": b"a name for a prefix",
    "a/" + "l" * 120 + ".txt": b"a long name",
    "a/größe ä.txt": b"unicode",
}


@dataclass(frozen=True)
class Archive:
    """A file to store: its name tells how. `what` says how it was made."""

    what: str
    ending: str
    data: bytes

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.what.lower()) + self.ending


@dataclass(frozen=True)
class Listing:
    """What a tool says of an archive; `names` also when it fails later. An error is a status or a complaint."""

    ok: bool
    names: tuple[bytes, ...]
    message: str


def _unescape(line: bytes) -> bytes:
    def one(found: re.Match[bytes]) -> bytes:
        text = found[1]
        return bytes([int(text, 8)]) if len(text) == 3 else bytes([_LETTERS.get(text[0], text[0])])

    return _ESCAPE.sub(one, line)


def _list(command: Sequence[str], data: bytes, ending: str, complaints: bool) -> Listing:
    with tempfile.NamedTemporaryFile(suffix=ending) as file:
        file.write(data)
        file.flush()
        done = subprocess.run([*command, file.name], capture_output=True, env=_ENVIRONMENT, check=False)
    names = tuple(_unescape(line) for line in done.stdout.split(b"\n")[:-1])
    message = done.stderr.decode(errors="replace").strip().replace(file.name, "")
    return Listing(done.returncode == 0 and not (complaints and message), names, message)


def list_with_bsdtar(archive: Archive) -> Listing:
    """bsdtar ends with 0 also where it goes on after damage; then it has complained."""
    return _list(["bsdtar", "-tf"], archive.data, archive.ending, True)


def list_with_gnu_tar(archive: Archive) -> Listing:
    """GNU tar takes the kind of compression from the ending. Its remarks, as on a lone zero block, are no errors."""
    program = ["-Ilz4"] if archive.ending == ".tar.lz4" and archive.data else ["-a"]
    return _list(["tar", "--quoting-style=escape", *program, "-tf"], archive.data, archive.ending, False)


def is_sound(archive: Archive) -> bool:
    """What the tool for this kind of compression says of the whole stream. GNU tar starts it, too, but may have seen the end of
    the archive before the tool sees the damage behind it, and then hears nothing of that: it depends on who is quicker."""
    tool = {".tgz": "gzip", ".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz", ".lz4": "lz4"}
    command = [tool[Path(f"x{archive.ending}").suffix], "-tq"]
    status = subprocess.run(command, input=archive.data, capture_output=True, env=_ENVIRONMENT, check=False).returncode
    return status == 0 or (command[0] == "gzip" and status == 2)  # a warning: rubbish behind the stream


def list_all(archives: Sequence[Archive], tool: Callable[[Archive], Listing]) -> list[Listing]:
    """The same of many, on both cores."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(tool, archives))


def pipe(command: Sequence[str], data: bytes) -> bytes:
    """What a tool writes to its standard output."""
    return subprocess.run(command, input=data, capture_output=True, env=_ENVIRONMENT, check=True).stdout


# --- Headers by hand.


def header(
    name: bytes = b"x.bin", size: int | bytes = 0, flag: bytes = b"0", *, magic: bytes = b"ustar\x0000", prefix: bytes = b"",
    more: Sequence[tuple[int, bytes]] = (),
) -> bytes:  # fmt: skip
    """One block with a right checksum; `more` are further fields by their offsets."""
    digits = b"%011o\0" % size if isinstance(size, int) else size
    block = bytearray(BLOCK)
    fields = (
        (0, name), (100, b"0000644\0"), (108, b"0000000\0"), (116, b"0000000\0"), (124, digits), (136, b"00000000000\0"),
        (156, flag), (257, magic), (345, prefix), *more,
    )  # fmt: skip
    for offset, field in fields:
        block[offset : offset + len(field)] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def member(name: bytes, data: bytes = b"hello", flag: bytes = b"0", **fields: object) -> bytes:
    return header(name, len(data), flag, **fields) + padded(data)  # type: ignore[arg-type]


def pax_record(key: bytes, value: bytes) -> bytes:
    size = len(key) + len(value) + 3
    while len(b"%d" % size) + len(key) + len(value) + 3 != size:
        size = len(b"%d" % size) + len(key) + len(value) + 3
    return b"%d %b=%b\n" % (size, key, value)


def pax(*records: tuple[bytes, bytes], flag: bytes = b"x") -> bytes:
    return member(b"PaxHeaders/x", b"".join(pax_record(*record) for record in records), flag)


PLAIN: Final = member(b"a/1.txt") + member(b"a/1.cls", b"7") + member(b"a/2.txt", _NOISE[:600])


def _star() -> Iterator[tuple[str, bytes]]:
    """star's formats: 131 bytes of prefix, times behind it, `tar` at the end of the block; xstar has the magic of POSIX."""
    tar = (508, b"tar\0")
    times = {
        "octal": b"14371351404 14371351404 ",
        "with blanks": b" 4371351404  4371351404 ",
        "in base 256": (b"\x80" + bytes(6) + struct.pack(">Q", 1 << 34)[3:]) * 2,
    }
    for how, text in times.items():
        more = [(476, text), tar]
        yield f"xstar times {how}", member(b"1.txt", prefix=b"dir/sub", more=more) + member(b"2.txt", more=more)
    full = [(476, times["octal"]), tar]
    yield "xstar full prefix", member(b"1.txt", prefix=b"d" * 130, more=full)
    extended = pax(
        (b"SCHILY.dev", b"2049"), (b"SCHILY.ino", b"12"), (b"mtime", b"1700000000.5"), (b"SCHILY.filetype", b"regular")
    )
    yield "exustar", (extended + member(b"a/1.txt", prefix=b"dir")) * 2
    old = [(257, b"1"), (266, b"0100644     "), (290, times["octal"]), (314, b"user\0"), (330, b"group\0"), tar]
    yield "star of 1985", member(b"a/1.txt", magic=b"", more=old) + member(b"a/2.txt", magic=b"", more=old)
    yield "star large size", header(b"a/1.txt", b"\x80" + (5).to_bytes(11, "big"), more=full) + padded(b"hello")


def _solaris() -> Iterator[tuple[str, bytes]]:
    acl = member(b"a/1.txt", b"1000003\0user::rwx,group::r-x,other:r-x\0", b"A")
    yield "solaris acl", acl + member(b"a/1.txt") + acl + member(b"a/2.txt") + member(b"a/3.txt")
    yield "solaris acl and X", acl + pax((b"path", b"a/renamed.txt"), flag=b"X") + member(b"a/1.txt")
    yield "solaris X", pax((b"mtime", b"1.5"), flag=b"X") + member(b"a/1.txt")
    long = member(b"././@LongLink", b"a/" + b"n" * 150 + b".txt\0", b"L")
    yield "solaris acl and long name", acl + long + member(b"n" * 100)


def _by_hand() -> Iterator[tuple[str, bytes]]:
    yield from _star()
    yield from _solaris()
    yield "v7", member(b"a/1.txt", magic=b"", flag=b"\0") + header(b"d/", 0, b"\0", magic=b"")
    yield "v7 rubbish behind names", member(b"a/1.txt\0old", magic=b"") + member(b"a/1.cls\0junk\0more", magic=b"")
    yield "rubbish behind a size", header(b"a/1.txt", b"5 rest 777 \0") + padded(b"hello")
    yield "rubbish behind a second size", PLAIN + header(b"b.txt", b"5\0rest 777 \0") + padded(b"hello")
    yield "rubbish behind a prefix", member(b"1.txt", prefix=b"dir\0junk")
    yield "rubbish behind a long name", member(b"././@LongLink", b"a/name.txt\0junk\0", b"L") + member(b"short")
    yield "prefix that ends with a slash", member(b"1.txt", prefix=b"dir/")
    yield "magic without a NUL", member(b"1.txt", prefix=b"dir", magic=b"ustar000")
    yield "gnu magic has no prefix", member(b"1.txt", prefix=b"12345670123\0", magic=b"ustar  \0")
    yield "old gnu long name list", member(b"././@MaNgLeD", b"Rename 1 to 2\n", b"N") + member(b"a/1.txt")
    yield "label with members", header(b"label", 0, b"V") + PLAIN
    yield "label at the end", PLAIN + header(b"label", 0, b"V")
    yield "label alone", header(b"label", 0, b"V")
    yield "global names", pax((b"path", b"everything"), flag=b"g") + PLAIN
    yield "global size", pax((b"comment", b"x"), (b"size", b"1000"), flag=b"g") + PLAIN
    yield "broken global header", member(b"g", b"99 path=x\n", b"g") + PLAIN
    yield "global header at the end", PLAIN + pax((b"comment", b"x"), flag=b"g")
    yield "long name before pax name", member(b"L", b"long.txt\0", b"L") + pax((b"path", b"pax.txt")) + member(b"short")
    yield "pax name before long name", pax((b"path", b"pax.txt")) + member(b"L", b"long.txt\0", b"L") + member(b"short")
    yield "two long names", member(b"L", b"one.txt\0", b"L") + member(b"L", b"two.txt\0", b"L") + member(b"short")
    yield "many long links", member(b"K", b"target\0", b"K") * 31 + header(b"link", 0, b"2")
    yield "pax size of a link", PLAIN + pax((b"size", b"512")) + header(b"link", 0, b"2") + _NOISE[:512] + member(b"z.txt")
    yield "sizes of links", b"".join(header(b"l", 4096, flag) for flag in (b"2", b"3", b"4", b"5", b"6")) + PLAIN
    yield "types nobody knows", b"".join(member(b"t" + flag, b"x" * 600, flag) for flag in (b"Z", b"I", b"E", b"s", b"M", b"D"))
    yield "continued from another volume", member(b"a/0.txt", b"rest", b"M", magic=b"ustar  \0") + PLAIN
    yield "binary attribute", pax((b"SCHILY.xattr.user.x", bytes(range(256)))) + PLAIN
    yield "pax header of nothing", header(b"x", 0, b"x") + PLAIN
    yield "not utf-8", member(b"caf\xe9.txt") + PLAIN


# --- What tools write.


@cache
def _tree() -> tempfile.TemporaryDirectory[str]:
    """A small tree of everything that tar knows, made once a process."""
    folder = tempfile.TemporaryDirectory(prefix="dfc-archives-")
    root = Path(folder.name)
    for name, data in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "a/link").symlink_to("0001.jpg")
    (root / "a/longlink").symlink_to("t" * 130)
    os.link(root / "a/0001.cls", root / "a/0009.cls")
    with open(root / "a/sparse.bin", "wb") as file:
        for number in range(6):
            file.seek(number << 13)
            file.write(_NOISE[:1000])
        file.truncate(1 << 16)
    return folder


def _run(tool: str, *options: str, names: Sequence[str] = ("a",)) -> bytes:
    """The archive on standard output. GNU tar ends with 2 when a format cannot hold a name, which is left out then."""
    sort = ["--sort=name", "--mtime", _TIME] if tool == "tar" else []
    done = subprocess.run(
        [tool, "-C", _tree().name, "-cf", "-", *sort, *options, *names], capture_output=True, env=_ENVIRONMENT, check=False
    )
    assert done.stdout, done.stderr
    return done.stdout


def _by_gnu_tar() -> Iterator[tuple[str, bytes]]:
    for form in ("v7", "ustar", "oldgnu", "gnu", "pax"):
        yield f"gnu tar {form}", _run("tar", f"--format={form}")
    for form in ("oldgnu", "gnu"):
        yield f"gnu tar {form} sparse", _run("tar", f"--format={form}", "-S")
    for version in ("0.0", "0.1", "1.0"):
        yield f"gnu tar pax sparse {version}", _run("tar", "--format=pax", "-S", f"--sparse-version={version}")
    yield "gnu tar label", _run("tar", "--label=disk one")
    yield "gnu tar pax label", _run("tar", "--format=pax", "--label=disk one")
    with tempfile.TemporaryDirectory() as folder:
        yield "gnu tar incremental", _run("tar", f"--listed-incremental={folder}/snapshot")
        yield "gnu tar incremental pax", _run("tar", "--format=pax", f"--listed-incremental={folder}/other")
        yield from _volumes(folder)
        yield from _appended(folder)
    yield "gnu tar large owner", _run("tar", "--owner=:4294967294", "--group=:3000000")
    yield "gnu tar pax large owner", _run("tar", "--format=pax", "--owner=:4294967294")
    yield "gnu tar global comment", _run("tar", "--format=pax", "--pax-option=comment=hello,globexthdr.name=g")
    yield "gnu tar pax no times", _run("tar", "--format=pax", "--pax-option=delete=atime,delete=ctime")
    yield "gnu tar one block a record", _run("tar", "-b1")
    yield "gnu tar null names", _run("tar", "--transform=s,a/,/abs/../,", "-P")
    yield "gnu tar nothing", pipe(["tar", "-cf", "-", "-T", "/dev/null"], b"")


def _volumes(folder: str) -> Iterator[tuple[str, bytes]]:
    """The second of two volumes begins within a member."""
    Path(folder, "large.bin").write_bytes(_NOISE * 5)
    Path(folder, "z.txt").write_bytes(b"z")
    volumes = [f"{folder}/v{number}" for number in range(4)]
    files = [option for volume in volumes for option in ("-f", volume)]
    command = ["tar", "-C", folder, "-cM", "-L", "10", *files, "large.bin", "z.txt"]
    subprocess.run(command, input=b"q\n", capture_output=True, env=_ENVIRONMENT, check=False)
    yield "gnu tar first volume", Path(volumes[0]).read_bytes()
    yield "gnu tar last volume", Path(volumes[2]).read_bytes()


def _appended(folder: str) -> Iterator[tuple[str, bytes]]:
    path = Path(folder, "appended.tar")
    path.write_bytes(_run("tar", names=["a/0001.jpg"]))
    subprocess.run(["tar", "-C", _tree().name, "-rf", path, "a/0002.jpg"], env=_ENVIRONMENT, check=True)
    yield "gnu tar append", path.read_bytes()
    other = Path(folder, "other.tar")
    other.write_bytes(_run("tar", names=["a/README"]))
    subprocess.run(["tar", "-Af", path, other], env=_ENVIRONMENT, check=True)
    yield "gnu tar concatenate", path.read_bytes()


def _by_bsdtar() -> Iterator[tuple[str, bytes]]:
    for form in ("v7", "ustar", "gnutar", "pax", "restricted"):
        name = "pax restricted" if form == "restricted" else form
        done = subprocess.run(
            ["bsdtar", "-C", _tree().name, f"--format={name}", "-cf", "-", "a"],
            capture_output=True,
            env=_ENVIRONMENT,
            check=False,
        )
        if done.stdout:
            yield f"bsdtar {form}", done.stdout
    yield "bsdtar one block a record", _run("bsdtar", "-b1", "--format=ustar")
    yield "bsdtar no sparse", _run("bsdtar", "--format=pax", "--no-read-sparse")


def _by_tarfile() -> Iterator[tuple[str, bytes]]:
    for form, title in ((tarfile.USTAR_FORMAT, "ustar"), (tarfile.GNU_FORMAT, "gnu"), (tarfile.PAX_FORMAT, "pax")):
        yield f"tarfile {title}", _tarfile(format=form)
    yield "tarfile global", _tarfile(format=tarfile.PAX_FORMAT, pax_headers={"comment": "ünï"})
    yield "tarfile large numbers", _tarfile(format=tarfile.GNU_FORMAT, uid=1 << 40, mtime=1 << 40)
    yield "tarfile float times", _tarfile(format=tarfile.PAX_FORMAT, mtime=1700000000.123456)
    yield "tarfile latin-1", _tarfile(format=tarfile.GNU_FORMAT, encoding="latin-1")


def _tarfile(uid: int = 0, mtime: float = 1_700_000_000, **options: object) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", **options) as tar:  # type: ignore[call-overload]
        for name, data in FILES.items():
            info = tarfile.TarInfo(name)
            info.size, info.uid, info.mtime = len(data), uid, mtime
            with suppress(ValueError):  # ustar cannot hold every name
                tar.addfile(info, io.BytesIO(data))
        for kind, name in ((tarfile.DIRTYPE, "d"), (tarfile.SYMTYPE, "s"), (tarfile.LNKTYPE, "h"), (tarfile.FIFOTYPE, "f")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a/0001.jpg" if kind != tarfile.DIRTYPE else ""
            tar.addfile(info)
    return buffer.getvalue()


# --- Ends.


def _ends() -> Iterator[tuple[str, bytes]]:
    gnu = _run("tar", names=["a/0001.jpg", "a/0001.cls"])
    other = _run("bsdtar", "--format=pax", names=["a/0002.jpg"])
    bare = gnu[: len(gnu.rstrip(b"\0")) + BLOCK & -BLOCK]
    yield "two archives", gnu + other
    yield "two archives and text", gnu + other + b"text"
    yield "bytes after the end", gnu + b"x"
    yield "text right after the end", bare + END + b"signature of whatever it is"
    yield "no end blocks", bare
    yield "one end block", bare + bytes(BLOCK)
    yield "one end block and a piece", bare + bytes(BLOCK + 100)
    yield "a piece of an end block", bare + bytes(100)
    yield "an archive after one end block", bare + bytes(BLOCK) + other
    yield "text after one end block", bare + bytes(BLOCK) + b"text"
    yield "padding", gnu + bytes(100_001)
    yield "one zero block", bytes(BLOCK)
    yield "zeros and text", bytes(BLOCK) + b"text"
    yield "end blocks alone", END
    yield "nothing", b""


# --- Compression.


def _skippable(size: int, number: int = 0) -> bytes:
    return struct.pack("<II", 0x184D2A50 + number, size) + b"s" * size


def _compressed() -> Iterator[Archive]:
    tar = _run("tar", "--format=pax")
    half = len(tar) // 2
    bare = PLAIN
    kinds = {
        ".tar.gz": (["gzip", "-nc"], [["-1"], ["-9"], ["--rsyncable"]]),
        ".tar.bz2": (["bzip2", "-c"], [["-1"], ["-9"]]),
        ".tar.xz": (["xz", "-c"], [["-0"], ["-9e"], ["-Cnone"], ["-Ccrc32"], ["-Csha256"], ["--block-size=8192"], ["-T2"]]),
        ".tar.lz4": (
            ["lz4", "-c"],
            [["-l"], ["-1"], ["-9"], ["-BD"], ["-B4"], ["-B7", "-BX"], ["--content-size"], ["--no-frame-crc"]],
        ),
        ".tar.zst": (
            ["zstd", "-c"],
            [["-1"], ["-19"], ["--no-check"], ["--no-content-size"], ["--long=26"], ["--adapt"], ["--format=zstd", "-T2"]],
        ),
    }
    for ending, (command, options) in kinds.items():
        tool = command[0]
        for option in options:
            yield Archive(f"{tool} {' '.join(option)}", ending, pipe([*command, *option], tar))
        yield Archive(f"{tool} two streams", ending, pipe(command, tar[:half]) + pipe(command, tar[half:]))
        yield Archive(
            f"{tool} a stream of nothing between",
            ending,
            pipe(command, tar[:half]) + pipe(command, b"") + pipe(command, tar[half:]),
        )
        yield Archive(f"{tool} two archives", ending, pipe(command, tar) + pipe(command, bare + END))
        yield Archive(f"{tool} no end blocks", ending, pipe(command, bare))
        yield Archive(f"{tool} nothing", ending, pipe(command, b""))
        yield Archive(f"{tool} zeros after", ending, pipe(command, tar) + bytes(512))
        for title, rubbish in (("text", b"garbage, at length"), ("byte", b"x"), ("zeros and text", bytes(512) + b"text")):
            yield Archive(f"{tool} {title} after", ending, pipe(command, tar) + rubbish)
        yield Archive(f"{tool} bytes of a magic number after", ending, pipe(command, tar) + pipe(command, tar)[:3])
        yield Archive(f"{tool} a broken stream after", ending, pipe(command, tar) + pipe(command, tar)[:60])
        yield Archive(f"{tool} no bytes at all", ending, b"")
    yield from _odd_frames(tar)


def _odd_frames(tar: bytes) -> Iterator[Archive]:
    half = len(tar) // 2
    gzip = pipe(["gzip", "-nc"], tar)
    name_and_comment = gzip[:3] + bytes([0x18]) + gzip[4:10] + b"shard.tar\0a comment\0" + gzip[10:]
    yield Archive("gzip name and comment", ".tgz", name_and_comment)
    extra = gzip[:3] + bytes([4]) + gzip[4:10] + b"\4\0abcd" + gzip[10:]
    yield Archive("gzip extra field", ".tgz", extra + gzip)
    checked = gzip[:3] + bytes([2]) + gzip[4:10]
    checked += struct.pack("<H", zlib.crc32(checked) & 0xFFFF) + gzip[10:]
    yield Archive("gzip header checksum", ".tgz", checked + name_and_comment)
    yield Archive("gzip a header that ends early after", ".tgz", gzip + name_and_comment[:20])
    yield Archive("plain tar with the name of a compressed one", ".tgz", tar)
    frame, legacy = (lambda data: pipe(["lz4", "-c"], data)), (lambda data: pipe(["lz4", "-lc"], data))
    large = member(b"a/large.bin", (_NOISE * 2100)[: 17 << 19]) + PLAIN + END
    yield Archive("lz4 legacy of two blocks", ".tar.lz4", legacy(large))
    yield Archive("lz4 skippable first", ".tar.lz4", _skippable(5) + frame(tar))
    yield Archive("lz4 skippable first, then legacy", ".tar.lz4", _skippable(0, 3) + legacy(tar))
    yield Archive("lz4 skippable between", ".tar.lz4", frame(tar[:half]) + _skippable(3000, 15) + frame(tar[half:]))
    yield Archive("lz4 skippable after", ".tar.lz4", frame(tar) + _skippable(5))
    yield Archive("lz4 skippable after legacy", ".tar.lz4", legacy(tar) + _skippable(5))
    yield Archive("lz4 legacy, then frame", ".tar.lz4", legacy(tar[:half]) + frame(tar[half:]))
    yield Archive("lz4 frame, then legacy", ".tar.lz4", frame(tar[:half]) + legacy(tar[half:]))
    yield Archive("lz4 two legacy frames", ".tar.lz4", legacy(tar[:half]) + legacy(tar[half:]))
    yield Archive("lz4 text after legacy", ".tar.lz4", legacy(tar) + b"garbage")
    yield Archive("lz4 zeros after legacy", ".tar.lz4", legacy(tar) + bytes(100))
    yield Archive("lz4 broken legacy", ".tar.lz4", legacy(tar)[:-3])
    zstd = pipe(["zstd", "-c"], tar)
    yield Archive("zstd skippable first", ".tar.zst", _skippable(12) + zstd)
    yield Archive("zstd skippable after", ".tar.zst", zstd + _skippable(12, 7))
    yield Archive("pzstd", ".tar.zst", pipe(["pzstd", "-qc"], tar))
    xz = pipe(["xz", "-c"], tar[:half])
    yield Archive("xz padding between", ".tar.xz", xz + bytes(8) + pipe(["xz", "-c"], tar[half:]))
    yield Archive("xz padding of a wrong size", ".tar.xz", xz + bytes(6) + pipe(["xz", "-c"], tar[half:]))


@cache
def corpus() -> tuple[Archive, ...]:
    """All of them, the same bytes at every call of a process."""
    plain = [*_by_gnu_tar(), *_by_bsdtar(), *_by_tarfile(), *_ends()]
    found = [Archive(what, ".tar", data) for what, data in plain]
    found += [Archive(what, ".tar", data + END) for what, data in _by_hand()]
    found += _compressed()
    assert len({archive.name for archive in found}) == len(found)
    return tuple(found)
