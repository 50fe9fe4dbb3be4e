"""Values, addresses and kinds of fields as people and browsers get them.

Characters that would change the text around them are made visible."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

import msgspec

from dfc.limits import OBJECT_NAME_BYTES_MAX
from dfc.listing.datasets import NumberedNames
from dfc.names import object_path

# Control characters, and those that turn the direction of writing or cannot be seen: a name could look like another one.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e01ef\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Show characters that cannot be seen by their numbers: `⟨202E⟩`. Line ends and tabs stay."""
    return _UNSEEN.sub(lambda found: f"⟨{ord(found[0]):04X}⟩", text)


def finalize(value: Any) -> Any:
    """Make text visible that a template prints; markup of the template's own is left alone."""
    return visible(value) if type(value) is str else value


def text_or_json(value: Any) -> str:
    """A text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def count(number: int | None) -> str:
    """Format a number with groups of three: `1 234 567`, by narrow spaces that break no line. Empty for None."""
    return "" if number is None else f"{number:,}".replace(",", "\u202f")


def seconds(number: float) -> str:
    """Format a time: `4 s`, `3 min`, `2.5 h`, `4 d`."""
    if number < 100:
        return f"{number:.0f} s"
    if number < 6000:
        return f"{number / 60:.0f} min"
    return f"{number / 3600:.1f} h" if number < 172800 else f"{number / 86400:.0f} d"


def percent(part: float, whole: float) -> str:
    """Format a share: `42 %`; empty if there is no whole."""
    return f"{100 * part / whole:.0f} %" if whole else ""


def escaped(json: str) -> str:
    """Escape what cannot be seen in a text that is JSON, so that it can be read and still means the same: `\\u202e`."""
    return _UNSEEN.sub(lambda found: "".join(f"\\u{unit:04x}" for unit in _units(found[0])), json)


def _units(character: str) -> list[int]:
    """The UTF-16 code units of a character, as JSON escapes them."""
    data = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


# --- Addresses of pages, and of what they show.


def page_of(name: str) -> str:
    """The page of a bucket."""
    return f"/ui/buckets/{quote(name, safe='')}"


def above(bucket: str, prefix: str) -> list[tuple[str, str]]:
    """The folders that a prefix is in, with their pages, from the bucket down."""
    found, at = [(bucket, page_of(bucket))], 0
    prefix = prefix[:OBJECT_NAME_BYTES_MAX]  # nothing can be below a longer one
    while (at := prefix.find("/", at) + 1) > 0:
        folder = prefix[:at]
        name = folder.rstrip("/").rpartition("/")[2] + "/"
        found.append((name, f"{page_of(bucket)}?{urlencode({'prefix': folder})}"))
    return found


def datasets_url(bucket: str, prefix: str) -> str:
    """The page of the datasets below a prefix."""
    return f"{page_of(bucket)}/datasets" + (f"?{urlencode({'prefix': prefix})}" if prefix else "")


def dataset_url(bucket: str, shards: str, **more: int) -> str:
    """The page of a dataset, by its pattern. `more`: further numbers of the query."""
    return f"/ui/dataset?{urlencode({'bucket': bucket, 'shards': shards, **more})}"


def dataset_above(bucket: str, name: str) -> tuple[str, str]:
    """The dataset that a shard is of, by its name, with its page."""
    names = NumberedNames.around(name)
    if names is None:
        return "as a dataset", dataset_url(bucket, name)
    return f"{names.before.rpartition('/')[2]}*{names.after}", dataset_url(bucket, names.pattern)


def new_job_url(operation: str, bucket: str, shards: str, more: Mapping[str, str] | None = None) -> str:
    """The page that begins a job, with its input. `more`: further fields of its form."""
    return f"/ui/jobs/new?{urlencode({'operation': operation, 'bucket': bucket, 'shards': shards, **(more or {})})}"


def shard_url(bucket: str, name: str, start: int = 0, **more: str) -> str:
    """The page of a shard, from an ordinal on. `more`: how its samples are shown."""
    return f"/ui/shard?{urlencode({'bucket': bucket, 'object': name, **({'start': start} if start else {}), **more})}"


def members_url(bucket: str, name: str, start: int = 0, *, of_none: bool = False) -> str:
    """The page of a shard's members, from an ordinal on; or of those of no sample, from an offset on."""
    more = {**({"of": "none"} if of_none else {}), **({"start": start} if start else {})}
    return f"/ui/members?{urlencode({'bucket': bucket, 'object': name, **more})}"


def sample_url(bucket: str, name: str, number: int) -> str:
    """The page of a sample."""
    return f"/ui/sample?{urlencode({'bucket': bucket, 'object': name, 'number': number})}"


def thumbnail_url(bucket: str, name: str, number: int, ext: str, pixels: int, version: str) -> str:
    """The path of a small picture of a field."""
    more = {"thumbnail": pixels, **({"version": version} if version else {})}
    return f"{field_url(bucket, name, number, ext)}&{urlencode(more)}"


def search_url(bucket: str, shards: str = "") -> str:
    """The page on which samples are found by their keys, in some shards of a bucket or in all."""
    return f"/ui/search?{urlencode({'bucket': bucket, **({'shards': shards} if shards else {})})}"


def field_url(bucket: str, name: str, number: int, ext: str) -> str:
    """The path of the bytes of a field."""
    return f"{object_path(bucket, name)}?{urlencode({'number': number, 'ext': ext})}"


# --- What a field of a sample is to a browser: a picture, sound, text, numbers, or bytes. By its extension; what is text is
# looked at.

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
