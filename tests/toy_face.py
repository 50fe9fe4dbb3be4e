"""A face that has nothing from DFC's own: other paths, signatures instead of the token, errors as XML. As S3's would be."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from dfc.errors import DfcError, Forbidden
from dfc.http.answers import Answer
from dfc.http.exchange import Exchange
from dfc.http.faces import Face, Route
from dfc.http.relay import Lines, Relay, Rewrite
from dfc.names import check_bucket_name, check_object_name

SIGNATURE = "X-Toy-Signature"
KEY = b"of the toy"
Find = Callable[[str, str, str], Awaitable[str]]
"""Method, bucket and key to the URL of the node to ask."""


def signature(method: str, path: str) -> str:
    """What a client of the toy sends with a request."""
    return hmac.new(KEY, f"{method} {path}".encode(), hashlib.sha256).hexdigest()


def signed(method: str, path: str) -> dict[str, str]:
    return {SIGNATURE: signature(method, path)}


def toy_error(error: DfcError, exchange: Exchange) -> Answer:
    """`<Error><Code/><Message/><RequestId/></Error>`."""
    fields = (("Code", error.code), ("Message", error.message), ("RequestId", exchange.request_id))
    body = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in fields)
    return Answer(
        error.status, f"<Error>{body}</Error>".encode(), [("Content-Type", "application/xml"), *error.headers.items()]
    )


def parse_error(body: bytes) -> dict[str, str]:
    """The fields of an error."""
    root = ElementTree.fromstring(body)
    assert root.tag == "Error"
    return {child.tag: child.text or "" for child in root}


class ToyFace:
    """Relays `/toy/{bucket}/{key…}` to the node that `find` says, with the token that this node has."""

    def __init__(self, relay: Relay, find: Find, token: str) -> None:
        self._relay = relay
        self._find = find
        self._token = token

    def face(self) -> Face:
        handlers = dict.fromkeys(("GET", "PUT", "DELETE"), self._object)
        route = Route("/toy/{bucket}/{key…}", handlers, query=frozenset(("part",)))
        return Face("toy", [route], self._authenticate, toy_error, segments=frozenset(("toy",)), checks_host=True)

    def _authenticate(self, exchange: Exchange, route: Route, authority: str | None) -> None:
        given = exchange.headers.get(SIGNATURE, "")
        if not hmac.compare_digest(given.encode(), signature(exchange.method, exchange.target_path).encode()):
            raise Forbidden("the signature does not match the request")

    async def _object(self, exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
        bucket, key = check_bucket_name(unquote(parameters[0])), check_object_name(unquote(parameters[1]))
        node = await self._find(exchange.method, bucket, key)
        rewrite = Rewrite(f"/v1/objects/{bucket}/{quote(key)}", self._request, _answer, toy_error)
        answer = await self._relay.forward(exchange, node, rewrite)
        if exchange.method == "PUT" and answer.status < 300:
            return Answer(200, b"", answer.headers)  # the toy's clients know nothing of DFC's JSON
        return answer

    def _request(self, headers: Lines) -> Lines:
        kept = [(name, value) for name, value in headers if name.lower() not in ("authorization", SIGNATURE.lower())]
        return [*kept, ("Authorization", f"Bearer {self._token}")]


def _answer(status: int, headers: Lines) -> Lines:
    return [(name.replace("X-DFC-", "X-Toy-"), value) for name, value in headers] + [("X-Toy-Status", str(status))]
