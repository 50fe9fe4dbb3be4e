"""Upload destinations on servers: DFC clusters, and any server that accepts PUT."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import BinaryIO, Final
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from dfc.client.client import Client
from dfc.client.source import READ_BYTES, FileObjectSource
from dfc.errors import BadRequest, DfcError, NotFound, PreconditionFailed, Unreachable
from dfc.http.calls.problems import error_from_answer
from dfc.inputs.base import InputError
from dfc.inputs.sources.cluster import cluster_at, is_cluster, token_for, transport_for
from dfc.inputs.sources.streams import StreamOptions
from dfc.inputs.sources.urls import origin_of, shown
from dfc.inputs.sources.websource import sendable
from dfc.inputs.storing.destination import Destination, persistently, taken
from dfc.limits import ERROR_BODY_BYTES_MAX
from dfc.names import check_bucket_name, check_object_name, parse_object_path
from dfc.wire import OBJECTS_PATH

_HOPS_MAX: Final = 5
_REDIRECTS: Final = frozenset((307, 308))  # the others turn a PUT into a GET


class ClusterDestination(Destination):
    """An object of a cluster. The client verifies the checksum and retries."""

    def __init__(self, client: Client, bucket: str, name: str, url: str, options: StreamOptions) -> None:
        super().__init__(url, options)
        self._client = client
        self._bucket = check_bucket_name(bucket)
        self._name = check_object_name(name)

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        spool.seek(0)
        try:
            self._client.put(self._bucket, self._name, spool, if_none_match="*" if exclusive else None)
        except PreconditionFailed:
            raise taken(self.url) from None

    def exists(self) -> bool:
        try:
            self._client.stat(self._bucket, self._name)
        except NotFound:
            return False
        return True


class WebDestination(Destination):
    """A URL that accepts PUT. A DFC node is recognised once the spool is complete; other servers also get Content-MD5."""

    def __init__(self, url: str, options: StreamOptions) -> None:
        super().__init__(url, options)
        parts = urlsplit(url)
        if not parts.hostname:
            raise BadRequest(f"{shown(url)} is not the URL of an object: it has no host")
        netloc = parts.netloc.rpartition("@")[2]
        self._origin = origin_of(url)
        self._target = urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))
        self._path = parts.path
        self._queried = bool(parts.query)  # a signed URL, not one of a DFC node
        self._headers = dict(options.headers)
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        elif token := token_for(self._origin, options):
            # For a DFC node that is not recognised because it cannot answer now.
            self._headers.setdefault("Authorization", f"Bearer {token}")

    def store(self, spool: BinaryIO, *, exclusive: bool = False) -> None:
        own = self._cluster()
        if own is not None:
            own.store(spool, exclusive=exclusive)
            return
        digest = _md5(spool)
        encoded = base64.b64encode(digest).decode()
        headers = {**self._headers, "Content-MD5": encoded, **({"If-None-Match": "*"} if exclusive else {})}
        tries = 0

        def attempt() -> None:
            nonlocal tries
            tries += 1
            self._put(spool, headers)

        try:
            persistently(attempt, self)
        except PreconditionFailed:
            # An earlier try whose answer was lost may have stored it.
            found = self._has(spool.seek(0, os.SEEK_END), digest) if tries > 1 else False
            if not found:
                unsure = "exists, perhaps stored by an earlier try of this upload whose answer was lost"
                raise taken(self.url, "" if found is False else unsure) from None

    def exists(self) -> bool:
        own = self._cluster()
        if own is not None:
            return own.exists()
        with transport_for(self.options).request("HEAD", self._target, self._headers) as answer:
            return answer.status < 300

    def _has(self, size: int, digest: bytes) -> bool | None:
        """Whether the server has these bytes, by length and MD5; None if it does not say."""
        try:
            with transport_for(self.options).request("HEAD", self._target, self._headers) as answer:
                if answer.status != 200:
                    return None
                headers = answer.headers
        except DfcError:
            return None
        if (headers.get("Content-Length") or str(size)) != str(size):
            return False
        if named := headers.get("Content-MD5"):
            return named == base64.b64encode(digest).decode()
        tag = (headers.get("ETag") or "").strip('"').lower()
        # S3's ETag is the MD5 if the object was uploaded in one piece without a key. Other ETags of this length differ.
        return True if tag == digest.hex() else None

    def _cluster(self) -> ClusterDestination | None:
        if self._queried or not self.options.direct or not is_cluster(self._origin, self.options):
            return None
        path = self._path
        if path.startswith(OBJECTS_PATH):
            path = path[len(OBJECTS_PATH) - 1 :]
        bucket, name = parse_object_path(path)
        if not name:
            raise BadRequest(f"{shown(self.url)} is not the URL of an object: it has no name after the bucket")
        return ClusterDestination(cluster_at(self._origin, self.options).client, bucket, name, self.url, self.options)

    def _put(self, spool: BinaryIO, headers: dict[str, str]) -> None:
        try:
            self._send(spool, headers)
        except ValueError as problem:  # invalid host names and port numbers
            text = f"{shown(self.url)} is not a valid URL, or redirects to an invalid one: {problem}"
            raise InputError(text, url=self.url) from None

    def _send(self, spool: BinaryIO, headers: dict[str, str]) -> None:
        url = self._target
        for _ in range(_HOPS_MAX):
            spool.seek(0)
            source = FileObjectSource(spool)
            if "If-None-Match" in headers:
                source.replayable = False  # no retry hidden from `store`, on an old connection that turns out dead
            with transport_for(self.options).request("PUT", url, headers, source) as answer:
                location = answer.headers.get("Location")
                if answer.status in _REDIRECTS and location:
                    url = sendable(urljoin(url, location))
                    if origin_of(url) != self._origin:  # another server must not get credentials meant for this one
                        headers = {name: value for name, value in headers.items() if name not in self._headers}
                    continue
                body = answer.read_all(ERROR_BODY_BYTES_MAX)
                if not 200 <= answer.status < 300:
                    raise error_from_answer(answer.status, answer.headers, body, f"PUT {shown(url)}")
                if answer.early:
                    raise Unreachable(f"PUT {shown(url)}: answered {answer.status} before the whole body was sent")
                return
        raise Unreachable(f"PUT {shown(self._target)}: more than {_HOPS_MAX} redirects")


def _md5(spool: BinaryIO) -> bytes:
    spool.seek(0)
    hasher = hashlib.md5(usedforsecurity=False)
    while data := spool.read(READ_BYTES):
        hasher.update(data)
    return hasher.digest()
