"""What all commands share: the cluster and its clients, addresses of objects, options, output and exit codes."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import typer

from dfc.errors import (
    BadName,
    BadShardSpec,
    ChecksumMismatch,
    DfcError,
    Forbidden,
    NotFound,
    ObjectCorrupt,
    ObjectNotFound,
    OperatorError,
    OutputExists,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from dfc.names import DEFAULT_BUCKET, check_bucket_name, check_object_name, parse_object_path
from dfc.wire import DEFAULT_URL, OBJECTS_PATH

if TYPE_CHECKING:
    from dfc.client import Client

# --- Exit codes of `dfc` and `tarshards`, and the errors they stand for. They are documented in docs/cli.md and never change.


class Exit(IntEnum):
    """The exit codes."""

    OK = 0
    FAILED = 1  # something failed for a reason without its own code, or for several reasons
    USAGE = 2  # the command line is wrong; nothing was done
    NOT_FOUND = 3  # an object, bucket, member, sample or file does not exist
    UNREACHABLE = 4  # no node answers, or the one that holds the object is down
    MISMATCH = 5  # bytes do not match their checksum: damaged on the way or on the disk
    NOT_ALLOWED = 6  # the token is missing or wrong
    INTERRUPTED = 130  # Ctrl-C
    OUTPUT_CLOSED = 141  # the reader of standard output closed it


class UsageMistake(DfcError):
    """The command line is wrong; the message says how to correct it."""

    code = "usage"


def exit_for(error: BaseException) -> Exit:
    """The exit code for one error."""
    match error:
        case UsageMistake() | BadName() | BadShardSpec() | OperatorError():
            return Exit.USAGE
        case NotFound() | FileNotFoundError():
            return Exit.NOT_FOUND
        case Unreachable() | Unavailable():
            return Exit.UNREACHABLE
        case ChecksumMismatch() | ObjectCorrupt():
            return Exit.MISMATCH
        case Unauthorized() | Forbidden():
            return Exit.NOT_ALLOWED
        case BrokenPipeError():
            return Exit.OUTPUT_CLOSED
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
    return Exit.FAILED


def exit_for_all(errors: Iterable[BaseException]) -> Exit:
    """The exit code for many errors: the one they share, else FAILED; OK for none."""
    codes = {exit_for(error) for error in errors}
    if not codes:
        return Exit.OK
    return codes.pop() if len(codes) == 1 else Exit.FAILED


def describe(error: BaseException) -> tuple[str, str]:
    """Return code and message of an error."""
    if isinstance(error, OutputExists):
        return error.code, error.message.replace(error.ADVICE, "give --overwrite to allow this")
    if isinstance(error, DfcError):
        return error.code, error.message
    if isinstance(error, OSError) and error.strerror:
        return "os_error", f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return "error", f"{type(error).__name__}: {error}"


# --- The state that all commands share: the cluster's URL and token, its clients, and how to print results and errors.

_OBEYED: Final = re.compile(r"[\x7f-\x9f]")  # by terminals, and not escaped in JSON
_BREAKS: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")  # whatever some program takes for the end of a field or a line


@dataclass
class Session:
    """One run of a command. `url` (or several, separated by commas) and `token` come from DFC_URL and DFC_TOKEN."""

    url: str | None = None
    token: str | None = None
    as_json: bool = False
    retries: int | None = None
    program: str = "dfc"
    clients: dict[str, Client] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # upload threads call `client` concurrently

    @classmethod
    def from_environment(cls) -> Session:
        return cls(os.environ.get("DFC_URL") or None, os.environ.get("DFC_TOKEN") or None)

    def client(self, base: str | None = None) -> Client:
        """Return a client for the cluster of DFC_URL, or for the node of a URL on the command line.

        The token is sent to the cluster of DFC_URL; only if that is not set, to the node given on the command line.
        """
        from dfc.client import Client

        url = base or self.url or DEFAULT_URL
        with self._lock:
            if url not in self.clients:
                token = self.token if base is None or self._is_own(base) else None
                self.clients[url] = Client(url, token, retries=self.retries)
            return self.clients[url]

    def _is_own(self, base: str) -> bool:
        from dfc.addresses import split_addresses

        return self.url is None or urlsplit(base)[:2] in [urlsplit(each)[:2] for each in split_addresses(self.url)]

    def abort(self) -> None:
        """Cancel the calls of other threads."""
        for client in self.clients.values():
            client.abort()

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def print_json(self, value: Any) -> None:
        """Print one line of JSON to standard output; the value may have structs in it."""
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_builtins)
        sys.stdout.write(_OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
        sys.stdout.flush()

    def print_done(self, value: Any, text: str) -> None:
        """Print what has been done: `value` with --json, otherwise `text`."""
        self.print_json(value) if self.as_json else print(text)

    def print_error(self, error: BaseException, subject: str = "") -> None:
        """Print an error to standard error as one line: `dfc: subject: message`, or JSON."""
        code, message = describe(error)
        if self.as_json:
            print(json.dumps({"error": {"code": code, "message": message, "subject": subject or None}}), file=sys.stderr)
        else:
            if isinstance(error, Unreachable) and self.url is None and DEFAULT_URL in self.clients:
                message += " (is the proxy running? DFC_URL is not set)"
            _say(f"{self.program}: {subject}: {message}" if subject else f"{self.program}: {message}")

    def note(self, text: str) -> None:
        """Print a line for people to standard error, unless --json is given."""
        if not self.as_json:
            _say(text)


def _say(text: str) -> None:
    """Print a line to standard error; it may have words of others in it."""
    print("\n".join(map(plain, text.split("\n"))) if sys.stderr.isatty() else text, file=sys.stderr)


def plain(text: str) -> str:
    """Show characters that a terminal would obey, or not show, by their numbers."""
    return text if text.isprintable() else "".join(each if each.isprintable() else f"<{ord(each):02X}>" for each in text)


def cell(text: str) -> str:
    """A key or a name as a field of a line: a terminal obeys nothing in it, and nothing ends the field or the line."""
    if text.isprintable():
        return text
    return plain(text) if sys.stdout.isatty() else _BREAKS.sub(lambda found: f"<{ord(found[0]):02X}>", text)


def _builtins(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)


def session_of(context: typer.Context, *, as_json: bool = False, retries: int | None = None) -> Session:
    """Return the session of this run, with the options of the command set."""
    session = context.find_root().obj
    assert isinstance(session, Session)
    session.as_json = as_json
    session.retries = retries
    return session


def copies_text(copies: int, wanted: int) -> str:
    """Format how many copies objects have, and with an arrow how many they are getting."""
    return str(copies) if copies == wanted else f"{copies}->{wanted}"


def parse_size(text: str) -> int:
    """Parse `1000000`, `1e9`, `100M` (k, M, G, T: powers of 1000) or `64MiB`, `1Gi` (powers of 1024). ValueError."""
    stripped = text.strip().removesuffix("B").removesuffix("b")
    for base, suffix in ((1024, "i"), (1000, "")):
        for power, letter in enumerate("kMGT", 1):
            if stripped.lower().endswith((letter + suffix).lower()):
                stripped = stripped[: -len(letter + suffix)]
                return _positive(stripped, base**power)
    return _positive(stripped, 1)


def _positive(text: str, scale: int) -> int:
    size = int(float(text) * scale)
    if size <= 0:
        raise ValueError(f"not a size: {text}")
    return size


def size_option(text: str) -> int:
    """Like `parse_size`, for command-line options: raises typer.BadParameter."""
    try:
        return parse_size(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a size; use a form like 500M, 1G, 64MiB or 1e9") from None


# --- Parses the names of objects on the command line: `bucket/object`, `object` (in the bucket `default`) or a URL. Pure.


class Remote(NamedTuple):
    """A parsed address. `base` is None for the cluster of DFC_URL; the `name` of a folder is empty or ends in `/`."""

    base: str | None
    bucket: str
    name: str

    @property
    def is_folder(self) -> bool:
        return not self.name or self.name.endswith("/")

    def __str__(self) -> str:
        return f"{self.base}/{self.bucket}/{self.name}" if self.base else f"{self.bucket}/{self.name}"

    def below(self, relative: str) -> Remote:
        """The address of an object in this folder. BadName if the name is not allowed."""
        return self._replace(name=check_object_name(self.name + relative))


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def parse_remote(text: str) -> Remote:
    """Parse the address of an object, a spec, or a folder (`bucket/`, `bucket/prefix/`). BadName, UsageMistake."""
    if not text:
        raise UsageMistake("the name of an object cannot be empty")
    base, path = _split_url(text) if is_url(text) else (None, text)
    if base is not None:
        parsed = parse_object_path(_without_slash(path))
        bucket, name = parsed.bucket, parsed.name
        if path.endswith("/"):
            # `/bucket/` names a bucket, `/bucket/a/` a folder in it.
            bucket, name = (unquote(path.strip("/")), "") if "/" not in path.strip("/") else (bucket, f"{name}/")
        return Remote(base, check_bucket_name(bucket), name)
    bucket, slash, name = path.partition("/")
    if not slash:
        return Remote(None, DEFAULT_BUCKET, check_object_name(path))
    if name:
        check_object_name(_without_slash(name))
    return Remote(None, check_bucket_name(bucket), name)


def parse_listing(text: str) -> Remote:
    """Parse the address of a bucket or of a prefix in it. Unlike in `parse_remote`, a single word is a bucket."""
    if is_url(text):
        base, path = _split_url(text)
        bucket, _, name = unquote(path).strip("/").partition("/") if path.strip("/") else ("", "", "")
        slash = "/" if path.endswith("/") and name else ""
        return Remote(base, check_bucket_name(bucket) if bucket else "", name + slash)
    bucket, _, name = text.partition("/")
    return Remote(None, check_bucket_name(bucket) if bucket else "", name)


def _split_url(text: str) -> tuple[str, str]:
    parts = urlsplit(text)
    if not parts.hostname or parts.query or parts.fragment:
        raise UsageMistake(f"not the URL of an object: {text}")
    path = parts.path or "/"
    if path.startswith(OBJECTS_PATH):
        path = path[len(OBJECTS_PATH) - 1 :]
    return f"{parts.scheme}://{parts.netloc}", path


def _without_slash(path: str) -> str:
    return path[:-1] if path.endswith("/") and len(path) > 1 else path


# --- Finds the objects that an address on the command line stands for: a name, a shard spec, a glob or a folder.

_WILDCARDS: Final = frozenset("*?[{")
_SPECIAL: Final = _WILDCARDS | {"@"}


@dataclass(frozen=True, slots=True)
class Selected:
    """One object. `relative` is its name below the folder of the address; size and etag are set if it was listed."""

    remote: Remote
    relative: str
    size: int | None = None
    etag: str | None = None


def select(
    session: Session,
    addresses: Sequence[str],
    *,
    recursive: bool = False,
    missing: Callable[[str, NotFound], None] | None = None,
) -> Iterator[Selected]:
    """Yield the objects of all addresses, in order; specs and folders are looked up lazily.

    Raises BadName, or UsageMistake for a folder without `recursive`, at once. A glob or folder without objects is passed to
    `missing`, or raised as ObjectNotFound. An address that looks like a spec but is the name of an object means that object.
    """
    remotes = [parse_remote(address) for address in addresses]
    for address, remote in zip(addresses, remotes, strict=True):
        if remote.is_folder and not recursive:
            raise UsageMistake(f"{address} is a folder: use -r")
    return _selected(session, remotes, missing)


def _selected(
    session: Session, remotes: Sequence[Remote], missing: Callable[[str, NotFound], None] | None
) -> Iterator[Selected]:
    for remote in remotes:
        try:
            yield from _expand(session.client(remote.base), remote)
        except NotFound as error:
            if missing is None:
                raise
            missing(str(remote), error)


def _expand(client: Client, remote: Remote) -> Iterator[Selected]:
    if remote.is_folder:
        yield from _listed(client, remote, remote.name, lambda name: True, len(remote.name))
        return
    from dfc.listing.specs import expand, is_plain

    if is_plain(remote.name) or _exists(client, remote):
        yield Selected(remote, remote.name[remote.name.rfind("/") + 1 :])
        return
    chosen = expand(remote.name)
    base = remote.name.rfind("/", 0, _plain_length(remote.name)) + 1  # the length of the folder that has all of them
    if isinstance(chosen, list):
        yield from (Selected(remote._replace(name=name), name[base:]) for name in chosen)
    else:
        yield from _listed(client, remote, chosen.prefix, chosen.matches, base)


def is_pattern(name: str) -> bool:
    """Whether a name that may also be a prefix has wildcards or braces."""
    return not _WILDCARDS.isdisjoint(name)


def matcher(spec: str) -> tuple[str, Callable[[str], bool]]:
    """For filtering a listing by a spec: return the prefix of all matching names, and a function that tells if one matches."""
    from dfc.listing.specs import expand

    chosen = expand(spec)
    if isinstance(chosen, list):
        return spec[: _plain_length(spec)], frozenset(chosen).__contains__
    return chosen.prefix, chosen.matches


def _plain_length(spec: str) -> int:
    return next((at for at, char in enumerate(spec) if char in _SPECIAL), len(spec))


def _exists(client: Client, remote: Remote) -> bool:
    try:
        client.stat(remote.bucket, remote.name)
    except NotFound:
        return False
    return True


def _listed(client: Client, remote: Remote, prefix: str, matches: Callable[[str], bool], base: int) -> Iterator[Selected]:
    found = False
    for info in client.list(remote.bucket, prefix=prefix):
        if matches(info.name):
            found = True
            yield Selected(remote._replace(name=info.name), info.name[base:], info.size, info.etag)
    if not found:
        raise ObjectNotFound(f"nothing matches {remote}")


# --- Command-line options that several commands share.

Json = Annotated[bool, typer.Option("--json", help="Print results and errors as JSON, one value per line.")]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Include folders and everything below them.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, max=64, help="Number of files to process at once.")]
Retries = Annotated[int, typer.Option("--retries", min=0, max=100, help="Number of retries, with increasing delays.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Also transfer files that already exist with the same checksum.")]

JOBS = 4
RETRIES = 7
