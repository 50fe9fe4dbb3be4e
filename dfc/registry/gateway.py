"""etcd: where it is, calls through its JSON gateway, and the keys of a registry."""

from __future__ import annotations

import base64
import logging
import os
import ssl
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from dfc.config import Settings
from dfc.errors import OperatorError, Unavailable
from dfc.limits import MIB
from dfc.placement.map import BucketEntry, ClusterMap, LayoutEntry, NodeEntry, RebalanceEntry, SliceRun
from dfc.registry.changes import RegistryState

# --- Where a registry in etcd is, and how one is let in.


class EtcdAccess(NamedTuple):
    """How etcd lets one in: the name and the password of a user, if it wants that, and PEM files for https: the authority that
    signs its certificates, and this node's own certificate with its key, if it wants to see one. Empty: not wanted."""

    user: str = ""
    password: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""

    def __repr__(self) -> str:
        return f"EtcdAccess(user={self.user!r})"  # nowhere the password

    def context(self) -> ssl.SSLContext:
        """What a connection with TLS needs; reads the files. OperatorError."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except OSError as error:  # an SSLError is one
            files = ", ".join(each for each in (self.ca, self.cert, self.key) if each)
            raise OperatorError(f"the certificates for etcd cannot be used ({files}): {error}") from error
        return context


NO_ACCESS: Final = EtcdAccess()


@dataclass(frozen=True)
class EtcdPlace:
    """Where a registry in etcd is: the client URLs of the members, what its keys begin with, and how one is let in."""

    urls: Sequence[str]
    prefix: str
    access: EtcdAccess = NO_ACCESS

    @property
    def below(self) -> str:
        """The prefix with a slash at its end."""
        return self.prefix if self.prefix.endswith("/") else self.prefix + "/"

    @classmethod
    def of(cls, settings: Settings) -> EtcdPlace | None:
        """The place that settings name; None if they name none."""
        if not settings.etcd_urls:
            return None
        access = EtcdAccess(settings.etcd_user, settings.etcd_password, settings.etcd_ca, settings.etcd_cert, settings.etcd_key)
        return cls(settings.etcd_urls, settings.etcd_prefix, access)


# --- Calls of etcd (version 3.4 or later) through its JSON gateway: https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/.
#
# The gateway writes numbers of 64 bits as strings, keys and values in base64, and leaves out whatever is false, zero or empty.

_log: Final = logging.getLogger("dfc.registry")
CALL_S: Final = 2.0  # without a quorum a member would answer after 7 s
CONNECT_S: Final = 1.0
ANSWER_BYTES_MAX: Final = 64 * MIB
Fields = dict[str, Any]


class EtcdRefused(Unavailable):
    """etcd has answered with an error, and nothing was done: `grpc_code` is one of gRPC's. 503."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"etcd refuses: {message}")
        self.grpc_code = code


class NotReached(Unavailable):
    """No member could be reached, so nothing was done. 503."""


class KeyValue(NamedTuple):
    """A key and what is under it. `value` None: it was deleted, at this revision."""

    key: str
    value: bytes | None
    revision: int
    lease: int = 0


class TxnAnswer(NamedTuple):
    """What became of a transaction: `revision` is that of the store after it, `found` what the ranges of its branch found."""

    succeeded: bool
    revision: int
    found: tuple[tuple[KeyValue, ...], ...]


NOT_FOUND: Final = 5
_INVALID: Final = 3
_UNAUTHENTICATED: Final = 16
_OUT_OF_RANGE: Final = 11
ACCESS_CODES: Final = (_INVALID, 7, _UNAUTHENTICATED)  # of answers to somebody who is not let in, among others
# gRPC's codes of answers after which nothing was done for certain: invalid argument, not found, already exists, permission
# denied, resource exhausted, failed precondition, out of range, unimplemented, unauthenticated.
_REFUSALS: Final = (3, NOT_FOUND, 6, 7, 8, 9, _OUT_OF_RANGE, 12, 16)


class EtcdGateway:
    """The members of one etcd, by their client URLs. A call goes to the member that answered last; if that does not, to the
    next one."""

    def __init__(self, urls: Sequence[str], access: EtcdAccess = NO_ACCESS) -> None:
        """OperatorError if the files that `access` names cannot be used."""
        self.urls: Final = [url.rstrip("/") for url in urls]
        self._access: Final = access
        self._tls: Final = access.context() if any(url.startswith("https:") for url in self.urls) else None
        self._token = ""  # etcd's word for us, once we have given our password
        self._at = 0
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        """Break off all calls."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    # --- keys

    async def range(self, key: str, end: str = "", *, serializable: bool = False) -> tuple[list[KeyValue], int]:
        """What is under a key, or from `key` up to `end`, and the revision of the store; `serializable`: as far as any member
        knows. Unavailable."""
        asked: Fields = {"key": encoded(key), **({"range_end": encoded(end)} if end else {})}
        answer = await self._repeat("/v3/kv/range", asked | ({"serializable": True} if serializable else {}))
        with _understood():
            return _pairs(answer), _revision(answer)

    async def transact(self, compare: Sequence[Fields], success: Sequence[Fields], failure: Sequence[Fields]) -> TxnAnswer:
        """Make a transaction. NotReached; any other Unavailable: it may have been made, or may still be."""
        body = {"compare": list(compare), "success": list(success), "failure": list(failure)}
        answer = await self._once("/v3/kv/txn", body)
        with _understood():
            ranges = [each["response_range"] for each in answer.get("responses", ()) if "response_range" in each]
            return TxnAnswer(answer.get("succeeded", False), _revision(answer), tuple(tuple(_pairs(each)) for each in ranges))

    # --- leases

    async def grant(self, ttl_s: int) -> int:
        """Make a lease for at least so many seconds, and return its id. Unavailable."""
        answer = await self._repeat("/v3/lease/grant", {"TTL": str(ttl_s)})
        with _understood():
            return int(answer["ID"])

    async def keep_alive(self, lease: int) -> bool:
        """Restart the time of a lease; False when it has expired. Unavailable."""
        answer = await self._repeat("/v3/lease/keepalive", {"ID": str(lease)})
        with _understood():
            return int(answer.get("result", {}).get("TTL", 0)) > 0

    async def revoke(self, lease: int) -> None:
        """End a lease, which deletes its keys. Unavailable."""
        try:
            await self._repeat("/v3/lease/revoke", {"ID": str(lease)})
        except EtcdRefused as error:
            if error.grpc_code != NOT_FOUND:
                raise

    # --- watching

    async def watch(self, key: str, end: str, revision: int) -> AsyncGenerator[list[KeyValue], None]:
        """Yield the changes of keys from `key` up to `end`, from a revision on, as they come: all of a transaction together.
        EtcdRefused: they are not known any more, so everything has to be read anew. Unavailable."""
        asked = {"create_request": {"key": encoded(key), "range_end": encoded(end), "start_revision": str(revision)}}
        url, rest = self.url, b""
        try:
            timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
            headers = await self._headers(url)
            async with self._open_session().post(
                f"{url}/v3/watch", data=msgspec.json.encode(asked), headers=headers, timeout=timeout
            ) as answer:
                async for piece in answer.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    if len(rest) > ANSWER_BYTES_MAX:
                        raise Unavailable(f"etcd at {url} sends a line of more than {ANSWER_BYTES_MAX} bytes")
                    for line in lines:
                        with _understood():
                            changes = _events(line)
                        yield changes
        except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError) as error:
            raise Unavailable(f"etcd at {url} does not tell of changes any more: {_why(error)}") from error
        finally:
            self.leave(url)
        raise Unavailable(f"etcd at {url} does not tell of changes any more")

    @property
    def url(self) -> str:
        """The member that is asked now."""
        return self.urls[self._at]

    def leave(self, url: str) -> None:
        """Ask the next member from now on, unless another one than this is asked already."""
        if self.url == url:
            self._at = (self._at + 1) % len(self.urls)

    async def _repeat(self, path: str, body: Fields) -> Fields:
        """Make a call that may be made twice: ask until a member answers."""
        for number in range(len(self.urls)):
            try:
                return await self._post(path, body)
            except EtcdRefused:
                raise
            except Unavailable:
                if number == len(self.urls) - 1:
                    raise
        raise AssertionError

    async def _once(self, path: str, body: Fields) -> Fields:
        """Make a call once, at the first member that can be reached."""
        for _ in self.urls:
            with suppress(NotReached):
                return await self._post(path, body)
        raise NotReached("no member of etcd can be reached")

    async def _post(self, path: str, body: Fields) -> Fields:
        url = self.url
        try:
            return await self._ask(url, path, body)
        except EtcdRefused:
            raise
        except Unavailable:
            self.leave(url)
            raise

    async def _ask(self, url: str, path: str, body: Fields) -> Fields:
        headers = await self._headers(url)
        try:
            return await self._call(url, path, body, headers)
        except EtcdRefused as error:
            if not self._access.user or error.grpc_code not in (_INVALID, _UNAUTHENTICATED) or "auth" not in error.message:
                raise
            if self._token == headers.get("Authorization"):  # it has run out, or that member has been started again
                self._token = ""
            return await self._call(url, path, body, await self._headers(url))

    async def _headers(self, url: str) -> dict[str, str]:
        """What lets us in, for which we may have to give our password first. Unavailable."""
        if not self._access.user:
            return {}
        if not self._token:  # several calls may do this at once: it does no harm, and none waits for another
            said = {"name": self._access.user, "password": self._access.password}
            answer = await self._call(url, "/v3/auth/authenticate", said, {})
            with _understood():
                self._token = str(answer["token"])
        return {"Authorization": self._token}

    async def _call(self, url: str, path: str, body: Fields, headers: Mapping[str, str]) -> Fields:
        timeout = aiohttp.ClientTimeout(total=CALL_S, sock_connect=CONNECT_S)
        try:
            async with self._open_session().post(
                url + path, data=msgspec.json.encode(body), headers=headers, timeout=timeout
            ) as response:
                content = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotReached(f"cannot reach etcd at {url}: {_why(error)}") from error
        except (aiohttp.ClientError, OSError, TimeoutError, RuntimeError) as error:  # RuntimeError: the session is closed
            raise Unavailable(f"etcd at {url} does not answer: {_why(error)}") from error
        try:
            answer: Fields = msgspec.json.decode(content, type=dict[str, Any])
            if response.status == 200:
                return answer
            code, message = int(answer.get("code", 2)), str(answer.get("error", content[:200]))
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise Unavailable(f"unexpected answer of etcd at {url}: {error}") from error
        if code in _REFUSALS:
            raise EtcdRefused(code, message)
        raise Unavailable(f"etcd at {url}: {message}")

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise Unavailable("the registry is closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=True if self._tls is None else self._tls)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return self._session


@contextmanager
def _understood() -> Iterator[None]:
    """Unavailable for an answer that is not one of etcd."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a UnicodeDecodeError is a ValueError, too
        raise Unavailable(f"unexpected answer of etcd: {error!r}") from error


def encoded(text: str | bytes) -> str:
    """A key or value as the gateway wants it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def put(key: str, value: bytes, lease: int = 0) -> Fields:
    """Part of a transaction: put a value under a key."""
    return {"request_put": {"key": encoded(key), "value": encoded(value), **({"lease": str(lease)} if lease else {})}}


def delete(key: str) -> Fields:
    """Part of a transaction: delete a key."""
    return {"request_delete_range": {"key": encoded(key)}}


def find(key: str) -> Fields:
    """Part of a transaction: look what is under a key."""
    return {"request_range": {"key": encoded(key)}}


def is_new(key: str) -> Fields:
    """Condition of a transaction: there is no such key."""
    return {"key": encoded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}


def is_of_revision(key: str, revision: int) -> Fields:
    """Condition of a transaction: the key was changed last at this revision."""
    return {"key": encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def is_under_lease(key: str, lease: int) -> Fields:
    """Condition of a transaction: the key is there, and goes with this lease."""
    return {"key": encoded(key), "target": "LEASE", "result": "EQUAL", "lease": str(lease)}


def _revision(answer: Fields) -> int:
    return int(answer["header"]["revision"])


def _pairs(answer: Fields) -> list[KeyValue]:
    return [_pair(each) for each in answer.get("kvs", ())]


def _pair(fields: Fields, *, is_deleted: bool = False) -> KeyValue:
    key, value = base64.b64decode(fields["key"]).decode(), base64.b64decode(fields.get("value", ""))
    return KeyValue(key, None if is_deleted else value, int(fields["mod_revision"]), int(fields.get("lease", 0)))


def _events(line: bytes) -> list[KeyValue]:
    """The changes that a line of a watch tells of."""
    reply = msgspec.json.decode(line, type=dict[str, Any])
    if "error" in reply:
        raise Unavailable(f"etcd does not tell of changes any more: {reply['error']}")
    result = reply.get("result", {})
    if result.get("canceled"):
        raise EtcdRefused(_OUT_OF_RANGE, f"the watch was ended: {result.get('cancel_reason', result.get('compact_revision'))}")
    return [_pair(each["kv"], is_deleted=each.get("type") == "DELETE") for each in result.get("events", ())]


def _why(error: Exception) -> str:
    """What went wrong, in words for people; aiohttp's own name its classes or say nothing."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)  # negative: of getaddrinfo
    return str(error) or type(error).__name__


# --- What a registry keeps in etcd, below one prefix, and how that becomes its state.
#
# `meta`: which cluster this is. `version`: version and step of the map; every change compares and rewrites it. `map`: nodes,
# layouts and the rest, in one piece, since one step may change all nodes and a transaction has at most 128 operations.
# `buckets/NAME`: a bucket. `changes/PROXY`: a mark of the last change that a proxy has made. `leases/NAME`: who has a lease.
# `records/NAME`: what holders of leases keep beside the state.

FORMAT: Final = 1
META: Final = "meta"
VERSION: Final = "version"
MAP: Final = "map"
BUCKETS: Final = "buckets/"
CHANGES: Final = "changes/"
LEASES: Final = "leases/"
RECORDS: Final = "records/"
_encode: Final = msgspec.json.encode


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """Which cluster this is. A `format` that is not known must not be written to. `moved_to`: which
    proxy's directory the registry was moved to; `coming`: it is being moved here. Then what is here must not be used."""

    cluster_id: str
    format: int = FORMAT
    moved_to: str = ""
    coming: bool = False


class MapNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the newest map."""

    version: int
    step: int = 0


class _Rest(msgspec.Struct, frozen=True, kw_only=True):
    """The state without its buckets."""

    nodes: tuple[NodeEntry, ...] = ()
    layouts: tuple[LayoutEntry, ...] = ()
    slices: tuple[SliceRun, ...] = ()
    rebalance: RebalanceEntry = RebalanceEntry()
    removed_disks: tuple[str, ...] = ()
    last_number: int = 0


def end_of(prefix: str) -> str:
    """The first key after all those that begin so."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def written(prefix: str, old: RegistryState | None, new: RegistryState) -> list[Fields]:
    """The operations that make the stored state the new one; `old` None: nothing is stored."""
    before = {} if old is None else {bucket.name: bucket for bucket in old.map.buckets}
    operations = [put(prefix + VERSION, _encode(MapNumbers(version=new.map.version, step=new.map.step)))]
    if old is None or _rest_of(old) != _rest_of(new):
        operations.append(put(prefix + MAP, _encode(_rest_of(new))))
    for bucket in new.map.buckets:
        if not _is_same(before.pop(bucket.name, None), bucket):
            operations.append(put(prefix + BUCKETS + bucket.name, _encode(_stored(bucket))))
    operations += [delete(prefix + BUCKETS + name) for name in before]
    return operations


def _rest_of(state: RegistryState) -> _Rest:
    found = state.map
    return _Rest(
        nodes=found.nodes,
        layouts=found.layouts,
        slices=found.slices,
        rebalance=found.rebalance,
        removed_disks=found.removed_disks,
        last_number=state.last_number,
    )


def _is_same(old: BucketEntry | None, new: BucketEntry) -> bool:
    return old is new or (old is not None and _stored(old) == _stored(new))


def _stored(bucket: BucketEntry) -> BucketEntry:
    """Without what follows from the slices, which changes for all buckets at once."""
    return msgspec.structs.replace(bucket, is_moving=False) if bucket.is_moving else bucket


def other_format(found: int) -> str:
    """What to say of a registry in another format."""
    return (
        f"the registry in etcd has format {found}, and this version of DFC knows format {FORMAT}: nothing was changed. Use the"
        " version of DFC that wrote it"
    )


class Mirror:
    """A copy of the keys, which is kept up to date by what etcd tells of. `prefix` ends with a slash."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._found: dict[str, KeyValue] = {}
        self._buckets: dict[str, tuple[int, BucketEntry]] = {}  # by key: the revision, and what was there
        self.revision = 0  # of the newest change that is known here

    def replace(self, found: Iterable[KeyValue], revision: int) -> None:
        """Take what is there at this revision for all there is, unless something newer is known already."""
        if revision < self.revision:
            return
        self._found = {each.key.removeprefix(self._prefix): each for each in found}
        self.revision = revision

    def take(self, changes: Sequence[KeyValue]) -> None:
        """Take changes, in the order of their revisions, all of one revision together; what was read before may come again."""
        for each in changes:
            if each.revision > self.revision:
                key = each.key.removeprefix(self._prefix)
                if each.value is None:
                    self._found.pop(key, None)
                else:
                    self._found[key] = each
        self.revision = max((self.revision, *(each.revision for each in changes)))

    def found(self, key: str) -> KeyValue | None:
        """A key; None: it is not there."""
        return self._found.get(key)

    def value(self, key: str) -> bytes | None:
        """What is under a key; None: nothing."""
        found = self._found.get(key)
        return None if found is None else found.value

    def values(self, prefix: str) -> dict[str, bytes]:
        """What is under all keys that begin so, by the rest of the key."""
        found = {key: each.value for key, each in self._found.items() if key.startswith(prefix)}
        return {key.removeprefix(prefix): value for key, value in found.items() if value is not None}

    def revision_of(self, key: str) -> int:
        """When a key was changed last; 0: it is not there."""
        found = self._found.get(key)
        return 0 if found is None else found.revision

    def meta(self) -> Meta | None:
        """Which cluster this is; None: none yet. ValueError for what no version of DFC has written."""
        found = self.value(META)
        return None if found is None else msgspec.json.decode(found, type=Meta)

    def state(self, cluster_id: str) -> RegistryState:
        """The state that is stored. ValueError."""
        numbers = msgspec.json.decode(self.value(VERSION) or b"", type=MapNumbers)
        rest = msgspec.json.decode(self.value(MAP) or b"", type=_Rest)
        is_moving = any(run.to is not None for run in rest.slices)
        keys = sorted(key for key in self._found if key.startswith(BUCKETS))
        self._buckets = {key: self._bucket(key) for key in keys}
        buckets = [entry for _, entry in self._buckets.values()]
        cluster_map = ClusterMap(
            cluster_id=cluster_id,
            version=numbers.version,
            step=numbers.step,
            nodes=rest.nodes,
            buckets=tuple(msgspec.structs.replace(each, is_moving=True) if is_moving else each for each in buckets),
            layouts=rest.layouts,
            slices=rest.slices,
            rebalance=rest.rebalance,
            removed_disks=rest.removed_disks,
        )
        return RegistryState(map=cluster_map, last_number=rest.last_number)

    def _bucket(self, key: str) -> tuple[int, BucketEntry]:
        found = self._found[key]
        known = self._buckets.get(key)
        if known is not None and known[0] == found.revision:
            return known
        return found.revision, msgspec.json.decode(found.value or b"", type=BucketEntry)
