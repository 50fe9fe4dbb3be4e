"""What a field of a sample is to a browser: a picture, sound, text, numbers, or bytes. By its extension; what is text is looked
at."""

from __future__ import annotations

import json
import re
from typing import Final, Literal

Kind = Literal["picture", "audio", "video", "text", "array", "bytes"]

PICTURES: Final = frozenset(("jpg", "jpeg", "png", "webp", "gif", "bmp", "avif"))
UNSHOWN_PICTURES: Final = frozenset(("tif", "tiff", "ppm", "pgm", "pbm"))  # browsers show them as thumbnails alone
THUMBNAILS: Final = (PICTURES | UNSHOWN_PICTURES) - {"avif"}
SOUNDS: Final = frozenset(("wav", "mp3", "ogg", "oga", "flac", "m4a", "opus"))
FILMS: Final = frozenset(("mp4", "webm", "ogv", "m4v", "mov"))
TEXTS: Final = frozenset(
    ("txt", "text", "json", "jsonl", "cls", "cls2", "id", "index", "label", "labels", "caption", "csv", "tsv", "yaml", "yml",
     "toml", "xml", "html", "htm", "svg", "md", "log", "lang", "url")
)  # fmt: skip
HEX_BYTES: Final = 256
FOLDED_DEPTH_MAX: Final = 32
FOLDED_CHARS_MAX: Final = 262_144
_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_TYPES: Final = {"f": "float", "i": "int", "u": "uint", "c": "complex"}
_TYPE: Final = re.compile(r"[<>=|]?([fiuc])([0-9]{1,2})")
_NPY: Final = re.compile(rb"\x93NUMPY[\x01-\x03]\x00")
_FORTRAN: Final = re.compile(r"'fortran_order': *(True|False)")
_DTYPE: Final = re.compile(r"'descr': *'([^']{1,40})'")
_SHAPE: Final = re.compile(r"'shape': *\(([0-9, ]{0,200})\)")


def last_part(ext: str) -> str:
    """What an extension is known by."""
    return ext.rpartition(".")[2].lower()


def kind_of(ext: str) -> Kind:
    """Return the kind of a field by the last part of its extension: `seg.png` is a picture."""
    last = last_part(ext)
    if last in PICTURES or last in UNSHOWN_PICTURES:
        return "picture"
    if last in SOUNDS:
        return "audio"
    if last in FILMS:
        return "video"
    if last == "npy":
        return "array"
    return "text" if last in TEXTS else "bytes"


def text_of(content: bytes, *, is_whole: bool) -> str | None:
    """Return the text that bytes are; None if they are none. `is_whole`: otherwise the last character may be cut."""
    for cut in range(1 if is_whole else 4):
        try:
            text = content[: len(content) - cut].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None


def folded(text: str) -> str | None:
    """Return JSON with line ends and indents, and everything else as it stands; an array of plain values is one line. None if
    it is none, too deep or too long."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    lines, depth, size, rest = [""], 0, 0, ""
    for token in _tokens(text):
        if token in ("}", "]"):
            depth -= 1
            if rest not in ("{", "["):
                lines.append("  " * depth)
        elif rest in ("{", "[", ","):
            lines.append("  " * depth)
        if token in ("{", "["):
            depth += 1
        lines[-1] += ": " if token == ":" else token
        size += len(token) + 2 * depth + 1
        if depth > FOLDED_DEPTH_MAX or size > FOLDED_CHARS_MAX:
            return None
        rest = token
    return "\n".join(lines)


def _tokens(text: str) -> list[str]:
    """The tokens of JSON; an array without arrays and objects in it is one of them."""
    found: list[str] = []
    begun = -1  # of an array that has had nothing but values so far
    for token in _JSON.findall(text):
        if token == "]" and begun >= 0:
            values = (each for each in found[begun + 1 :] if each != ",")
            found[begun:] = [f"[{', '.join(values)}]"]
            begun = -1
            continue
        if token in ("{", "}", "[", "]"):
            begun = len(found) if token == "[" else -1
        found.append(token)
    return found


def array_of(content: bytes) -> str | None:
    """Say what array a file of NumPy has, by its head: `float32, 3 × 224 × 224`. None if it is none."""
    if _NPY.match(content) is None:
        return None
    head = content[10 : 10 + 1024].decode("latin-1")
    dtype, shape = _DTYPE.search(head), _SHAPE.search(head)
    if dtype is None or shape is None:
        return None
    sizes = [size.strip() for size in shape[1].split(",") if size.strip()]
    order = _FORTRAN.search(head)
    by_columns = ", by columns" if order is not None and order[1] == "True" else ""
    return f"{_type_name(dtype[1])}, {' × '.join(sizes) or 'one number'}{by_columns}"


def _type_name(code: str) -> str:
    """`float32` for `<f4`; a code that has no such name as it stands."""
    found = _TYPE.fullmatch(code)
    return f"{_TYPES[found[1]]}{8 * int(found[2])}" if found is not None else code


def hexadecimal(content: bytes) -> str:
    """Show bytes as numbers and characters, 16 a line."""
    lines = []
    for at in range(0, min(len(content), HEX_BYTES), 16):
        part = content[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:04x}  {part.hex(' '):<47}  {shown}")
    return "\n".join(lines)
