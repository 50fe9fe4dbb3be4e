"""What the formats share: samples, sources and sinks, checks, broken files, and samples out of unordered files.

Nothing that is read is trusted: every length is compared with what is left of the file, and with JOB_MEMBER_BYTES_MAX,
before anything is allocated for it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, BinaryIO, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from dfc.checksum import Buffer
from dfc.errors import BadRequest, Conflict
from dfc.limits import JOB_MEMBER_BYTES_MAX, SAMPLE_RECORDS_MAX, TAR_MEMBER_NAME_BYTES_MAX
from dfc.tar.samples import SampleGrouper, split_key

# --- A sample and its members, in memory: what formats write and what jobs pass on.

OnSplit = Literal["fail", "join", "keep"]
"""For a key that occurs again later in its shard: fail and name it, join its samples into the first, or keep them."""
ON_SPLIT_REMEDY: Final = "set on_split to join or keep, or write repaired shards first: dfc validate --repair"


class SplitSample(Conflict):
    """A key occurs again later in its shard, and the job does not say what to do about it."""

    code = "split_sample"


@dataclass(slots=True)
class DataMember:
    """One member of a sample with its bytes. `name` is that in the archive, `ext` in lower case."""

    ext: str
    name: str
    data: bytes


@dataclass(slots=True)
class SampleData:
    """One sample, in memory. `number` is its ordinal in its shard."""

    key: str
    number: int
    members: list[DataMember]

    def get(self, ext: str) -> bytes | None:
        """The bytes of a field; None when it is absent, which differs from empty."""
        return next((member.data for member in self.members if member.ext == ext), None)


# --- What the formats share: sources and sinks, checks of samples, and the error for broken files.

KEY_FIELD: Final = "__key__"  # where a format has no place of its own for the key
READ_BYTES: Final = 1 << 20  # of one read ahead
_WINDOW_BYTES: Final = 64 << 10  # of small reads
_NAME_SHOWN: Final = 80


class FormatError(Conflict):
    """The file is broken, hostile or of an unsupported kind. The message names the file and, if known, the offset."""

    code = "broken_input"

    def __init__(self, file: str, problem: str, offset: int | None = None) -> None:
        super().__init__(f"{file}: {problem}" + ("" if offset is None else f" at offset {offset}"))
        self.offset = offset


class ExtraMissing(BadRequest):
    """A format needs a library that is not installed."""

    code = "extra_missing"


class Readable(Protocol):
    """The stored bytes of an object; a `Source` of a job's store is one."""

    size: int

    def read_into(self, offset: int, buffer: memoryview) -> None: ...
    def open(self) -> BinaryIO: ...


class Sink(Protocol):
    """Takes the next bytes, all of them."""

    def write(self, data: Buffer) -> object: ...


class SampleWriter(Protocol):
    """Writes one file. `finish` ends it and leaves the sink open."""

    def add(self, sample: SampleData) -> None: ...
    def finish(self) -> None: ...


class WriterOptions(NamedTuple):
    """Options for writers: the compression level, the columns of a table, and a seed to use instead of random numbers, which
    identifies the input."""

    level: int | None
    columns: Sequence[str]
    seed: str


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A format that holds samples in single files. A module of this package defines one as `FORMAT` to be in the table.

    `read(source, file)` yields samples; with `joins_samples` it is `read(source, file, on_split, warnings)` and deals with keys
    that come again by itself. With an `index_ending`, the writer has an `index`, bytes that become a second file.
    """

    endings: tuple[str, ...]  # of names, in lower case
    writer: Callable[[Sink, WriterOptions], SampleWriter]
    read: Callable[..., Iterator[SampleData]]
    joins_samples: bool = False
    levels: range | None = None  # of compression
    library: str | None = None  # the module it needs, to write and to read
    fields: Callable[[Readable, str], Collection[str]] | None = None  # the extensions in a file, where its head has them
    wants_columns: bool = False  # all files get the same columns, which have to be known before
    index_ending: str = ""

    def index_name(self, name: str) -> str:
        """The name of the index beside a file of this name."""
        ending = next((each for each in self.endings if name.lower().endswith(each)), "")
        return name[: len(name) - len(ending)] + self.index_ending


def need(module: str) -> None:
    """Check that a library is installed. ExtraMissing says what to install."""
    if find_spec(module) is None:
        raise ExtraMissing(f"this format needs {module} on every node: pip install {module}")


class ByteReader:
    """Reads a stream in order, exactly as many bytes as requested. `at` is the offset of the next byte."""

    def __init__(self, source: Readable, file: str) -> None:
        self._stream = source.open()
        self.size = source.size
        self.file = file
        self.at = 0

    @property
    def at_end(self) -> bool:
        return self.at >= self.size

    def take(self, count: int, what: str) -> bytes:
        """The next `count` bytes. FormatError when the file is shorter, or they would not fit in memory."""
        if count > self.size - self.at:
            raise FormatError(self.file, f"the file ends inside {what}, which has {count} bytes", self.at)
        if count > JOB_MEMBER_BYTES_MAX:
            raise FormatError(self.file, f"{what} of {count} bytes is too large to be changed in memory", self.at)
        data = self._stream.read(count)
        while len(data) < count:
            more = self._stream.read(count - len(data))
            if not more:
                raise FormatError(self.file, f"the file ends inside {what}", self.at + len(data))
            data += more
        self.at += count
        return data

    def close(self) -> None:
        self._stream.close()


class SeekableFile(io.RawIOBase):
    """A `Readable` as a file with `seek`, for libraries that want one. `read_max` bounds what one read may ask for.

    Small reads are served from a window that is read ahead: a source may be on another node.
    """

    def __init__(self, source: Readable, file: str, read_max: int = JOB_MEMBER_BYTES_MAX) -> None:
        self._source, self._file, self._read_max = source, file, read_max
        self._at = 0
        self._window = b""
        self._window_at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self._at, self._source.size)[whence]
        if at < 0:
            raise OSError("seek before the first byte")  # what libraries expect of a file
        self._at = at
        return at

    def read(self, count: int | None = -1) -> bytes:
        left = max(self._source.size - self._at, 0)
        count = left if count is None or count < 0 else min(count, left)
        if count > self._read_max:
            raise FormatError(self._file, f"a piece of {count} bytes is too large for one read", self._at)
        if not count:
            return b""
        start = self._at - self._window_at
        if not 0 <= start <= len(self._window) - count:
            if count >= _WINDOW_BYTES:
                data = self._fetch(self._at, count)
                self._at += count
                return data
            self._window = self._fetch(self._at, min(_WINDOW_BYTES, left))
            self._window_at, start = self._at, 0
        self._at += count
        return self._window[start : start + count]

    def _fetch(self, offset: int, count: int) -> bytes:
        buffer = bytearray(count)
        self._source.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def check_member_name(file: str, name: str, offset: int | None = None) -> None:
    """FormatError for a name that cannot or must not be a tar member's: absolute, with `..` or NUL, too long."""
    parts = name.split("/")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise FormatError(file, f"the name {name[:_NAME_SHOWN]!r} is not UTF-8", offset) from None
    if not 0 < size <= TAR_MEMBER_NAME_BYTES_MAX or "\0" in name or name.startswith("/") or ".." in parts:
        raise FormatError(file, f"{name[:_NAME_SHOWN]!r} is not a valid member name", offset)


def sample_of(file: str, number: int, key: str, fields: Iterable[tuple[str, bytes]], offset: int | None = None) -> SampleData:
    """Make a sample from the contents of another format: pairs (extension as written, bytes), in order.

    FormatError when a tar of them would not give this sample back: a key with a dot in its last part, an extension with a
    slash, an extension twice.
    """
    members: list[DataMember] = []
    seen: set[str] = set()
    for written, data in fields:
        name, ext = f"{key}.{written}", written.lower()
        check_member_name(file, name, offset)
        if split_key(name) != (key, ext):
            raise FormatError(file, f"{key[:_NAME_SHOWN]!r} and {written[:_NAME_SHOWN]!r} are not key and extension", offset)
        if ext in seen or len(seen) >= SAMPLE_RECORDS_MAX:
            problem = f"has {ext[:_NAME_SHOWN]!r} twice" if ext in seen else f"has more than {SAMPLE_RECORDS_MAX} fields"
            raise FormatError(file, f"the sample {key[:_NAME_SHOWN]!r} {problem}", offset)
        seen.add(ext)
        members.append(DataMember(ext, name, data))
    return SampleData(key, number, members)


def key_without(file: str, number: int) -> str:
    """Make a key for a sample without one: the file's name up to the first dot, and the ordinal."""
    base = file.rpartition("/")[2].partition(".")[0] or "sample"
    return f"{base}-{number:09d}"


def pack_fields(sample: SampleData, **more: str) -> bytes:
    """msgpack of {extension: bytes}, in the order of the members; `more` goes before. ValueError for a field of such a name."""
    fields: dict[str, str | bytes] = dict(more)
    for member in sample.members:
        if member.ext in fields:
            raise ValueError(f"the sample {sample.key!r} has a field {member.ext!r}")
        fields[member.ext] = member.data
    return msgspec.msgpack.encode(fields)


_FIELDS: Final = msgspec.msgpack.Decoder(dict[str, Any])


def unpack_fields(file: str, data: Buffer, offset: int) -> dict[str, bytes | str]:
    """The inverse of `pack_fields`; FormatError for anything but a map from text to bytes or text."""
    try:
        fields = _FIELDS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(file, f"a record is not a msgpack map of bytes ({str(error)[:100]})", offset) from None
    if not all(isinstance(value, bytes | str) for value in fields.values()):
        raise FormatError(file, "a record is a msgpack map with values other than bytes", offset)
    return fields


def fields_in_order(fields: Mapping[str, bytes | str]) -> Iterator[tuple[str, bytes]]:
    """Pairs for `sample_of`, with text as UTF-8 and without the key."""
    for name, value in fields.items():
        if name != KEY_FIELD:
            yield name, value.encode() if isinstance(value, str) else value


# --- Samples out of files that have names and no order to rely on: members of a zip, objects below a prefix.

T = TypeVar("T")


@dataclass
class Group(Generic[T]):
    """The files of one sample, by name, each with what its bytes can be read from."""

    key: str
    files: list[tuple[str, T]] = field(default_factory=list)

    def ext(self, name: str) -> str:
        """The extension of one of its files."""
        return name[len(self.key) + 1 :].lower()


@dataclass
class Grouped(Generic[T]):
    """`dropped` counts files that belong to no sample."""

    samples: list[Group[T]]
    dropped: int


def group_files(where: str, files: Iterable[tuple[str, T]], on_split: OnSplit) -> Grouped[T]:
    """Group neighbours with the same key into samples, as in a tar. SplitSample for a key that occurs again later, unless
    `on_split` says join or keep; joined files keep their order, and none may occur twice."""
    grouper, samples, dropped = SampleGrouper(), [], 0
    first: dict[str, Group[T]] = {}
    for name, what in files:
        parts = split_key(name)
        if parts is None:
            dropped += 1
            continue
        key = parts[0]
        if grouper.starts_sample(name):
            group = Group[T](key)
            known = first.setdefault(key, group)
            if known is not group and on_split == "fail":
                raise SplitSample(f"{where}: the key {key!r} occurs again later; {ON_SPLIT_REMEDY}")
            if known is group or on_split == "keep":
                samples.append(group)
            else:
                group = known
        group.files.append((name, what))
    if on_split == "join":
        for group in samples:
            extensions = [group.ext(name) for name, _ in group.files]
            if len(set(extensions)) < len(extensions):
                raise SplitSample(f"{where}: the sample {group.key!r} has an extension twice")
    return Grouped(samples, dropped)
