"""The state that all commands share: the cluster's URL and token, its clients, and how to print results and errors."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import typer

from dfc.cli.exits import describe
from dfc.errors import Unreachable
from dfc.wire import DEFAULT_URL

if TYPE_CHECKING:
    from dfc.client import Client

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
