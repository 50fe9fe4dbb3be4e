"""A bucket in which everything is out to do harm: names, texts, numbers, arrays, sound, pictures, records of jobs."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from pictures import bomb, photo

BUCKET: Final = "hostile"
SHARD: Final = "all.tar"
SQUEEZED: Final = "all.tar.gz"
CROWD: Final = "crowd.tgz"
OWNED: Final = "window.__pwned=1"
RUNS: Final = (
    f"<svg xmlns='http://www.w3.org/2000/svg' onload='{OWNED};alert(1)'>"
    f"<script href='http://evil.example/x.js'>{OWNED};alert(2)</script><image href='http://evil.example/x.png'/></svg>"
)
PAGE: Final = (
    f"<!doctype html><base href='http://evil.example/'><meta http-equiv=refresh content='0;url=http://evil.example/'>"
    f"<link rel=stylesheet href=//evil.example/x.css><script>{OWNED};alert(3)</script><iframe srcdoc='{RUNS}'></iframe>"
)
# Texts that are more than texts to somebody: HTML, templates, shells, addresses, Python, CSV.
TEXTS: Final = (
    f"<img src=x onerror={OWNED};alert(4)>",
    f"\"'><script>{OWNED};alert(5)</script>",
    f"</title></textarea></select></pre><script>{OWNED}</script>",
    f"' autofocus onfocus={OWNED} x='",
    "{{7*7}}${7*7}{%if 1%}#{7*7}<%=7*7%>",
    "{{ self.__init__.__globals__ }}",
    f"javascript:{OWNED}",
    "data:text/html,<script>alert(6)</script>",
    "%2e%2e%2f%00%0d%0aSet-Cookie:x=1",
    "&lt;b&gt;&#x3c;script&#x3e;",
    "photo\u202egpj.exe\u2066\u200b\ufeff\u00ad\U000e0041",
    "`$(touch pwned)`;'\"\\|&!",
    "=cmd|'/c calc'!A1",
    "__proto__",
    "constructor",
    "\u0130\ufdfa\U0001f600\uffff\u0301" * 8,
    "x" * 200,
    "//evil.example/x",
    "{0}%s%n[*]?{a,b}@3",
)
SET: Final = f"{TEXTS[1]}{TEXTS[0]}{{{{7*7}}}}\u202e-%d.tar"  # the names of two shards
PATTERN: Final = SET.replace("%d", "{0..1}")
CONTROLS: Final = ("new\nline\r\nX-Evil: 1", "\x1b]0;title\x07\x1b[31mred", "nul\x00byte", "tab\tand\x85next", "\u2028\u2029")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def full_png(side: int) -> bytes:
    """One whose data are there: so many bytes square, from a thousandth of them."""
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    squeeze, row = zlib.compressobj(9), bytes(side + 1)
    data = b"".join(squeeze.compress(row) for _ in range(side)) + squeeze.flush()
    text = zlib.compress(b"A" * (64 << 20), 9)
    texts = b"".join(chunk(b"zTXt", b"k\0\0" + text) for _ in range(4))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + texts + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def gif(width: int, height: int, frames: int, *, ends: bool = True) -> bytes:
    """An animation that is repeated for ever. `ends` not: the data of its last frame go on to the end of the file."""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    loops = b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0"
    frame = b"!\xf9\x04\x04\0\0\0\0" + b",\0\0\0\0" + struct.pack("<HHB", width, height, 0)
    whole = frame + b"\x02\x02\x44\x01\0"
    return head + loops + whole * frames + (b";" if ends else frame + b"\x02" + (b"\xff" + b"\x24" * 255) * 4000)


def webp(side: int) -> bytes:
    """A header that says so, and nothing behind it."""
    bits = (side - 1) | (side - 1) << 14
    data = b"\x2f" + struct.pack("<I", bits) + bytes(64)
    return b"RIFF" + struct.pack("<I", 12 + len(data)) + b"WEBPVP8L" + struct.pack("<I", len(data)) + data


def tiff(side: int) -> bytes:
    """One whose list of pictures leads back to its beginning."""
    entries = ((256, side), (257, side), (258, 8), (259, 1), (262, 1), (273, 8), (277, 1), (278, side), (279, 2**31 - 1))
    tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + tags + struct.pack("<I", 8)


def npy(head: str, size: int | None = None) -> bytes:
    """An array whose head is this, and says that it has `size` bytes."""
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(head) if size is None else size) + head.encode() + b"\0" * 16


DEEP: Final = "[" * 30_000 + "]" * 30_000
LAUGHS: Final = "<!DOCTYPE l [<!ENTITY a 'lol'>" + "".join(
    f"<!ENTITY {chr(98 + n)} '{f'&{chr(97 + n)};' * 10}'>" for n in range(9)
)
PICTURES: Final = {
    "bomb.png": bomb(60_000),
    "full.png": full_png(8192),
    "bomb.gif": gif(65_535, 65_535, 1),
    "frames.gif": gif(64, 64, 20_000),
    "endless.gif": gif(8, 8, 3, ends=False),
    "bomb.webp": webp(16_384),
    "bomb.tif": tiff(60_000),
    "loop.tif": tiff(64),
    "plain.ppm": b"P3\n8000 8000\n255\n" + b"#" * 500_000 + b"\n" + b"9 " * 500_000,
    "cut.jpg": photo((9, 9, 9), (2000, 1500))[:3000],
    "page.jpg": PAGE.encode(),
    "svg.png": RUNS.encode(),
    "text.bmp": b"BM" + b"\xff" * 60,
    "script.webp": b"%!PS\n/Helvetica findfont 9 scalefont setfont (x) show showpage",
    "empty.png": b"",
}
FIELDS: Final = {
    "cls": b"9" * 5000,
    "txt": (PAGE + "\u202e" + "".join(CONTROLS)).encode(),
    "json": f'{{"__proto__": {{"x": {"9" * 5000}}}, "{TEXTS[1].replace(chr(34), "")}": 1e999999, "y": "{TEXTS[0]}"}}'.encode(),
    "deep.json": DEEP.encode(),
    "wide.json": b"[" + b"0," * 200_000 + b"0]",
    "quoted.json": b'"' + b"\\" * 60_000,
    "long.txt": b"x" * 3_000_000,
    "lines.log": b"\x1b[31m\r\n\0".replace(b"\0", b"") * 60_000,
    "html": PAGE.encode(),
    "svg": RUNS.encode(),
    "xml": (LAUGHS + "]><l>&j;</l>").encode(),
    "xxe.xml": b"<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><x>&e;</x>",
    "pdf": b"%PDF-1.7\n1 0 obj<</OpenAction<</S/JavaScript/JS(app.alert\\(1\\))>>>>endobj",
    "npy": npy(f"{{'descr': '<script>{OWNED}', 'fortran_order': False, 'shape': ({'9' * 190},), }}"),
    "lies.npy": npy("{'descr': '|O', 'fortran_order': True, 'shape': (9999999999, 9999999999), }", 65_535),
    "cut.npy": b"\x93NUMPY\x03\0\xff\xff\xff\xff",
    "wav": b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\xff\xff" + b"\xff" * 40,
    "mp3": b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + b"\xff\xfb" * 100,
    "mp4": b"\0\0\0\x01ftypisom" + b"\xff" * 200,
    "webm": PAGE.encode(),
    "latin.txt": "\u00e9".encode("latin-1") * 100,
    "pkl": b"cos\nsystem\n(S'touch pwned'\ntR.",
    "": b"",
}


def shard(members: Iterable[tuple[str, bytes]]) -> bytes:
    """A tar, with names that need not be UTF-8."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def key_of(text: str) -> str:
    """A text without what would end a key."""
    return text.replace(".", "\u2024").replace("\0", "")


def members() -> list[tuple[str, bytes]]:
    """A sample with each kind of field, one with each picture, one for each text as key, as extension, as both, and as text."""
    found = [(f"a.{ext}" if ext else "a", content) for ext, content in FIELDS.items()]
    found += [(f"p-{name}", content) for name, content in PICTURES.items()]
    for text in (*TEXTS, *CONTROLS):
        key = key_of(text)
        found += [(f"{key}.cls", text.encode()), (f"{key}.{key}.jpg", b"no picture"), (f"{key}.{key}", text.encode())]
        found += [(f"{key}/{key}", b"of no sample")]
    found += [("\udcff\udcfe.\udcff", b"not UTF-8"), ("../../../etc/passwd.txt", b"x"), ("/abs.txt", b"x")]
    return [*found, ("y" * 4000 + ".txt", b"x")]


def crowd() -> bytes:
    """Samples with thousands of fields: a list of 60 of them has 12 MB."""
    head = tarfile.TarInfo("00.0000x").tobuf(tarfile.GNU_FORMAT)
    base = int(head[148:154], 8) - sum(head[:8])
    blocks = bytearray()
    for sample in range(60):
        for field in range(4000):
            name = b"%02d.%04dx" % (sample, field)
            blocks += name + head[8:148] + b"%06o" % (base + sum(name)) + head[154:]
    return gzip.compress(blocks + bytes(1024), 1)


def names() -> list[str]:
    """Names of objects that the server takes."""
    found = [text.strip("/").replace("//", "/") for text in TEXTS if "%00" not in text]
    return [*found, *(f"{each}/{each}.html" for each in found), "n" * 1020 + ".txt", "%252525", "a" + "/b" * 400]


def records() -> dict[str, bytes]:
    """Forged records of jobs about a dataset, by the last part of their names."""
    read = {"bucket": BUCKET, "name": SET % 0, "checksum": TEXTS[1], "size": -(10**400), "samples": 10**400}
    spec = {"input": {"bucket": BUCKET, "shards": PATTERN}, "output": {"bucket": BUCKET, "pattern": "report.json"}}
    whole = {"operation": "stats", "created": TEXTS[0], "label": TEXTS[1], "spec": spec, "inputs": [[read]], "outputs": []}
    others = [{"bucket": TEXTS[6], "name": f"javascript:{OWNED}-0.tar", "samples": 1}, {**read, "name": "x/../../y.tar"}]

    made = [{"name": text, "samples": 1} for text in TEXTS]

    def reports_in(pattern: str) -> bytes:
        return json.dumps({**whole, "created": "~", "spec": {**spec, "output": {"bucket": "x", "pattern": pattern}}}).encode()

    return {
        "0-whole": json.dumps({**whole, "inputs": [[read, *others]], "outputs": made}).encode(),
        "1-deep": DEEP.encode(),
        "2-types": b'{"operation": 1, "created": [], "spec": null}',
        "3-huge": json.dumps(whole).encode()[:-1] + b', "x": "' + b"x" * 400_000 + b'"}',
        "4-cut": b'{"operation": "stats"',
        "5-out": reports_in("../../../node/figures"),
        "6-none": reports_in(""),
        "7-nul": reports_in("\0\r\nX-Evil: 1"),
        "8-query": reports_in("report.json?list=members#"),
        "9-digits": reports_in("digits.json"),
        "a-good": json.dumps({**whole, "created": "~~", "inputs": [[{**read, "size": 1, "samples": 1}]]}).encode(),
        TEXTS[0]: b"{}",
    }


def report(shards: int, size: int, huge: str) -> bytes:
    """A forged report of `stats`: huge numbers, and classes called like scripts."""
    field = '{"members": %s, "bytes": %s, "smallest": 0, "largest": 0, "sizes": [[1, %s], [1, %s], [%s, 1]]}'
    fields = dict.fromkeys(TEXTS, field % ((huge,) * 5))
    classes = dict.fromkeys((*TEXTS, *map(str, range(99))), f'{{"samples": {huge}, "bytes": 0}}')
    joined = [", ".join(f"{json.dumps(name)}: {value}" for name, value in each.items()) for each in (fields, classes)]
    return (
        f'{{"shards": {shards}, "samples": {huge}, "stored_bytes": {size}, "extensions": {{{joined[0]}}},'
        f' "by": {json.dumps(TEXTS[1])}, "without_class": {huge}, "classes": {{{joined[1]}}},"by_shard":[]}}'
    ).encode()


def path(name: str) -> str:
    return f"/{BUCKET}/{quote(name, safe='')}"
