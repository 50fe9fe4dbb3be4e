"""The layout of a disk: paths, file names for object names, and the footer at the end of every blob. Pure; no I/O.

A blob is `objects/<bucket id>/<2 hex>/<escaped name>@<blob id>`: the object's bytes, then a footer that says which object they
belong to, with its attributes. Names whose escaped form is over 180 bytes become `#` and the xxh3-128 of the name; the footer
has the full name.
docs/on-disk-format.md describes all this.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import xxhash

from dfc.clock import VERSION_CHARS
from dfc.errors import BadName
from dfc.limits import ATTRIBUTES_BYTES_MAX, BLOB_NAME_BYTES_MAX, OBJECT_NAME_BYTES_MAX
from dfc.storage.rows import ObjectRow

FORMAT_VERSION: Final = 1  # of a footer
STAGED_FORMAT: Final = 2  # of the footer of a staged blob: an output of a job, not yet an object
IDENTITY_FILE: Final = "dfc-disk.json"
CATALOG_FILE: Final = "catalog.sqlite"
EPOCH_FILE: Final = "catalog-epoch"
BALLAST_FILE: Final = "ballast"
OBJECTS: Final = "objects"
ORPHANS: Final = "orphans"
DAMAGED: Final = "damaged"
TEMPORARY: Final = "temporary"
INDEX_SUFFIX: Final = ".idx"

_BUCKET_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~/-]*")  # what quote() leaves unchanged, and the slashes of folders
_BLOB_FILE: Final = re.compile(rf"(.+)@([0-9a-f]{{{VERSION_CHARS}}})(\.idx)?", re.DOTALL)
JOB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STAGED_OWNER: Final = re.compile(r"([^/]+)/([^/]+)/([01])")
_FAN_DIRECTORY: Final = re.compile(r"[0-9a-f]{2}")

# The fixed end of a footer, little-endian; before it come the bucket id and the name, both UTF-8, and the attributes.
# Size, xxh3-128, version, lengths of bucket id, name and attributes, format, hash, magic.
_TRAILER: Final = struct.Struct("<Q16s18sHHHHQ8s")
_FORM: Final = slice(-18, -16)  # in footers of every format
_MAGIC: Final = b"DFC-BLOB"
_HASHED: Final = _TRAILER.size - 16  # the hash covers everything before it
TRAILER_BYTES: Final = _TRAILER.size
FOOTER_BYTES_MAX: Final = TRAILER_BYTES + 63 + 64 + 3 + OBJECT_NAME_BYTES_MAX + ATTRIBUTES_BYTES_MAX  # staged


class BlobFile(NamedTuple):
    """A parsed file name in `objects/`. `name` is None for a hashed name; the footer has it."""

    name: str | None
    stem: str
    blob_id: str
    is_index: bool


@dataclass(frozen=True, slots=True)
class Footer:
    """Which object the bytes before it belong to; `footer_bytes` is its own length. `job` is None unless the blob is staged."""

    bucket_id: str
    name: str
    version: str
    size: int
    checksum: str
    footer_bytes: int
    attributes: bytes = b""
    job: str | None = None
    temporary: bool = False


class FooterDamaged(Exception):
    """The file does not end in a footer, or the footer does not match its hash."""


def check_bucket_id(bucket_id: str) -> str:
    """Check and return a bucket id: it becomes a directory, so at most 63 letters, digits, `_` and `-`. Raises BadName."""
    if not _BUCKET_ID.fullmatch(bucket_id):
        raise BadName(f"invalid bucket id: {bucket_id[:80]!r}")
    return bucket_id


def fan_directory(name: str) -> str:
    """The two hex digits that spread a bucket's blobs over 256 directories."""
    return xxhash.xxh3_64_hexdigest(name.encode())[:2]


def is_fan_directory(text: str) -> bool:
    return _FAN_DIRECTORY.fullmatch(text) is not None


def blob_stem(name: str) -> str:
    """The name as one path component, without the version."""
    escaped = name.replace("/", "%2F") if _PLAIN.fullmatch(name) else quote(name, safe="")
    return escaped if len(escaped) <= BLOB_NAME_BYTES_MAX else hashed_stem(name)


def hashed_stem(name: str) -> str:
    return "#" + xxhash.xxh3_128_hexdigest(name.encode())


def bucket_directory(root: str, bucket_id: str) -> str:
    return f"{root}/{OBJECTS}/{bucket_id}"


def blob_directory(root: str, bucket_id: str, name: str) -> str:
    return f"{root}/{OBJECTS}/{bucket_id}/{fan_directory(name)}"


def blob_path(root: str, bucket_id: str, name: str, blob_id: str) -> str:
    return f"{root}/{OBJECTS}/{bucket_id}/{fan_directory(name)}/{blob_stem(name)}@{blob_id}"


def row_path(root: str, row: ObjectRow) -> str:
    return blob_path(root, row.bucket_id, row.name, row.blob_id)


def parse_blob_file(file_name: str) -> BlobFile | None:
    """Parse a file name in `objects/`; None if it does not have the form of a blob or an index."""
    match = _BLOB_FILE.fullmatch(file_name)
    if match is None:
        return None
    stem, blob_id, index = match.groups()
    if stem.startswith("#"):
        return BlobFile(None, stem, blob_id, index is not None)
    name = unquote(stem, errors="replace")
    if blob_stem(name) != stem:
        return None
    return BlobFile(name, stem, blob_id, index is not None)


def blob_bytes(row: ObjectRow) -> int:
    """The length of the whole file: the object's bytes and the footer."""
    name = row.name
    return (
        row.size
        + TRAILER_BYTES
        + len(row.bucket_id)
        + (len(name) if name.isascii() else len(name.encode()))
        + len(row.attributes)
    )


def row_footer(row: ObjectRow) -> bytes:
    """The footer of an object's blob."""
    return _encode_footer(row.bucket_id, row, FORMAT_VERSION)


def staged_footer(row: ObjectRow, job: str, temporary: bool) -> bytes:
    """The footer of a staged blob: it has its own format, with the job after the bucket id, which has no slash."""
    owner = f"{row.bucket_id}/{job}/{int(temporary)}"
    return _encode_footer(owner, row, STAGED_FORMAT)


def _encode_footer(owner: str, row: ObjectRow, form: int) -> bytes:
    bucket, name, attributes = owner.encode(), row.name.encode(), row.attributes
    lengths = len(bucket), len(name), len(attributes)
    fields = row.size, bytes.fromhex(row.checksum), row.version.encode(), *lengths, form
    head = bucket + name + attributes + _TRAILER.pack(*fields, 0, _MAGIC)[:_HASHED]
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little") + _MAGIC


def check_job_id(job: str) -> str:
    """Check and return a job id; BadName if it does not fit into a footer."""
    if not JOB_ID.fullmatch(job):
        raise BadName(f"invalid job id: {job[:80]!r}")
    return job


def decode_footer(tail: bytes) -> Footer:
    """Decode the footer at the end of `tail`: at least the last FOOTER_BYTES_MAX bytes of the file, or all of it."""
    if len(tail) < TRAILER_BYTES or not tail.endswith(_MAGIC):
        raise FooterDamaged("it has no footer at its end")
    form = int.from_bytes(tail[_FORM], "little")
    if form not in (FORMAT_VERSION, STAGED_FORMAT):
        raise FooterDamaged(f"its footer has format {form}, and this version of DFC reads {FORMAT_VERSION} and {STAGED_FORMAT}")
    fields = _TRAILER.unpack(tail[-TRAILER_BYTES:])
    size, checksum, version, bucket_bytes, name_bytes, attributes_bytes, _, digest, _ = fields
    length = TRAILER_BYTES + bucket_bytes + name_bytes + attributes_bytes
    if length > len(tail) or xxhash.xxh3_64_intdigest(tail[len(tail) - length : -16]) != digest:
        raise FooterDamaged("its footer fails its hash")
    variable = tail[len(tail) - length : -TRAILER_BYTES]
    bucket_id, name = variable[:bucket_bytes].decode(), variable[bucket_bytes : bucket_bytes + name_bytes].decode()
    attributes = variable[bucket_bytes + name_bytes :]
    known = (name, version.decode(), size, checksum.hex(), length, attributes)
    if form == FORMAT_VERSION:
        return Footer(bucket_id, *known)
    owner = _STAGED_OWNER.fullmatch(bucket_id)
    if owner is None:
        raise FooterDamaged("its footer names no job")
    return Footer(owner[1], *known, owner[2], owner[3] == "1")
