"""Routes of faces, and faces of one server: what they must not share, and that each has the word about its own paths."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from toy_face import ToyFace, parse_error, signed

from dfc.config import Settings
from dfc.errors import Conflict, MethodNotAllowed, Unavailable
from dfc.http.answers import Answer, json_answer
from dfc.http.exchange import Exchange
from dfc.http.faces import Face, Faces, Route, Router, TokenAccess
from dfc.http.peer import PeerPool
from dfc.http.relay import Relay
from dfc.http.server import NodeServer

CALM = Settings(port=0, access_log=False, drain_timeout_s=1.0)


async def hello(exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
    return json_answer({"parameters": parameters})


def route(pattern: str, **more: Any) -> Route:
    return Route(pattern, {"GET": hello}, **more)


def nobody(exchange: Exchange, route: Route, authority: str | None) -> None:
    """Everybody may do everything."""


def face(name: str, *patterns: str, segments: tuple[str, ...] = (), rest: bool = False) -> Face:
    routes = [route(pattern) for pattern in patterns]
    return Face(name, routes, nobody, segments=frozenset(segments), rest=route("/") if rest else None)


# --- what fits together


@pytest.mark.parametrize(
    "second",
    [
        face("b", "/v1/x", rest=True),
        face("b", "/v1/{bucket}/y", rest=True),
        face("b", "/v1/{key}/y", rest=True),  # the same paths by another name
        face("b", "/v1/{key}/z/{rest…}", "/v1/{a}/z/{b…}", rest=True),
        face("b", segments=("v1",), rest=True),
    ],
)
def test_two_faces_never_have_the_same_route(second):
    first = face("a", "/v1/x", "/v1/{bucket}/y", segments=("v1",))
    with pytest.raises(ValueError, match="the same route"):
        Faces([first, second])


async def test_exactly_one_face_has_the_rest():
    for faces in ([face("a", "/v1/x"), face("b", "/v2/x")], [face(each, f"/{each}", rest=True) for each in "ab"], []):
        with pytest.raises(ValueError, match="exactly one"):
            Faces(faces)
    with pytest.raises(ValueError, match="exactly one"):
        NodeServer(CALM, [face("a", "/v1/x")])


def test_each_path_is_of_one_face():
    faces = Faces([face("a", "/v1/x", segments=("v1",)), face("b", "/v1/b/{key}"), face("c", "/c/{key…}", rest=True)])
    found = {path: faces.find(path) for path in ("/v1/x", "/v1/b/k", "/v1/y", "/v1", "/c/k/l", "/c/", "/any", "/")}
    names = {path: (where.face.name, where.route and where.route.pattern) for path, where in found.items()}
    assert names == {
        "/v1/x": ("a", "/v1/x"), "/v1/b/k": ("b", "/v1/b/{key}"), "/v1/y": ("a", None), "/v1": ("a", None),
        "/c/k/l": ("c", "/c/{key…}"), "/c/": ("c", "/"), "/any": ("c", "/"), "/": ("c", "/"),
    }  # fmt: skip
    assert found["/c/k/l"].parameters == ("k/l",)


# --- errors before and in a handler


async def broken(exchange: Exchange, parameters: tuple[str, ...]) -> Answer:
    raise {"conflict": Conflict("<no>"), "bug": KeyError("bug")}[parameters[0]]


def unrenderable(error: Any, exchange: Exchange) -> Answer:
    raise RuntimeError("a mistake in a face")


Ask = Callable[..., Awaitable[tuple[int, dict[str, str], bytes]]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[Ask]]]:
    """Starts a server with DFC's face at `/v1` and for the rest, the toy's, and one that can render nothing."""
    pool, servers = PeerPool(1.0), []

    async def nowhere(method: str, bucket: str, key: str) -> str:
        raise Unavailable("no node", retry_after_s=7)

    async def start(**settings: Any) -> Ask:
        chosen = replace(CALM, **settings)
        may_use = TokenAccess(chosen).check
        toy = ToyFace(Relay(pool, 1.0), nowhere, "t").face()
        toy = replace(toy, routes=[*toy.routes, Route("/toy-broken/{how}", {"GET": broken})])
        own = Face("v1", [route("/v1/hello")], may_use, segments=frozenset(("v1",)), rest=route("/", query=None))
        mute = Face("mute", [Route("/mute/{how}", {"GET": broken})], nobody, unrenderable)
        server = NodeServer(chosen, [own, toy, mute])
        servers.append(server)
        server.bind()
        await server.serve()

        async def ask(method: str, target: str, *lines: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            head = [f"{method} {target} HTTP/1.1", "Connection: close", *lines]
            head += [] if any(line.startswith("Host:") for line in lines) else ["Host: localhost"]
            writer.write("\r\n".join([*head, "", ""]).encode() + body)
            status, _, answer = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n")
            headers, _, content = answer.partition(b"\r\n\r\n")
            writer.close()
            pairs = [line.split(": ", 1) for line in headers.decode().split("\r\n")]
            assert len({name for name, _ in pairs}) == len(pairs), pairs
            return int(status.split()[1]), dict(pairs), content

        return ask

    yield start
    for server in servers:
        await server.stop()
    pool.close()


def lines_of(path: str) -> list[str]:
    return [f"{name}: {value}" for name, value in signed("GET", path).items()]


SIGNED = lines_of("/toy/b/k")
EARLY = {
    "unknown path": ("GET", "/toy/b", [], 404, "not_found"),
    "the segment alone": ("GET", "/toy", [], 404, "not_found"),
    "method": ("POST", "/toy/b/k", ["Content-Length: 0"], 405, "method_not_allowed"),
    "signature": ("GET", "/toy/b/k", [], 403, "forbidden"),
    "query": ("GET", "/toy/b/k?other=1", SIGNED, 400, "bad_request"),
    "query twice": ("GET", "/toy/b/k?part=1&part=2", SIGNED, 400, "bad_request"),
    "host": ("GET", "/toy/b/k", [*SIGNED, "Host: evil.example"], 421, "misdirected"),
    "host of an absolute target": ("GET", "http://evil.example/toy/b/k", SIGNED, 421, "misdirected"),
    "no host at all": ("GET", "/toy/b/k", [*SIGNED, "Host: a b"], 400, "bad_request"),
    "host before the path": ("GET", "/toy/b", ["Host: evil.example"], 421, "misdirected"),
    "framing": ("GET", "/toy/b/k", [*SIGNED, "Transfer-Encoding: gzip, chunked"], 400, "bad_request"),
    "framing of an absolute target": (
        "GET", "http://localhost/toy/b/k", [*SIGNED, "Transfer-Encoding: gzip, chunked"], 400, "bad_request"
    ),
    "handler": ("GET", "/toy/b/k", SIGNED, 503, "unavailable"),
}  # fmt: skip


@pytest.mark.parametrize("case", EARLY)
async def test_errors_have_the_form_of_the_face_however_early(serve, case):
    method, target, lines, status, code = EARLY[case]
    body = b"0\r\n\r\n" if "Transfer-Encoding: gzip, chunked" in lines else b""
    got, headers, content = await (await serve())(method, target, *lines, body=body)
    assert (got, parse_error(content)["Code"], headers["Content-Type"]) == (status, code, "application/xml")
    assert parse_error(content)["RequestId"] == headers["X-Request-Id"]
    if code == "method_not_allowed":
        assert headers["Allow"] == "DELETE, GET, HEAD, PUT"
    if code == "unavailable":
        assert headers["Retry-After"] == "7"


async def test_a_head_request_has_the_head_of_the_error(serve):
    status, headers, content = await (await serve())("HEAD", "/toy/b")
    assert (status, headers["Content-Type"], content) == (404, "application/xml", b"")
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize("target", ["/v1/other", "/v1/hello?x=1", "/v1", "http://evil.example/other"])
async def test_the_face_beside_it_keeps_its_own(serve, target):
    status, headers, content = await (await serve())("GET", target)
    assert status in (400, 404, 421)
    assert (headers["Content-Type"], b'{"error":' in content) == ("application/json", True)


async def test_where_dfc_wants_the_token_always_a_face_without_it_still_knows_its_hosts(serve):
    """A browser adds no token to what a page asks for; what it adds to a request of another face is that face's to say."""
    ask = await serve(token="t", token_for_reads=True)
    assert (await ask("GET", "/v1/hello", "Host: any.example", "Authorization: Bearer t"))[0] == 200
    assert (await ask("GET", "/any", "Host: any.example"))[0] == 401
    status, _, content = await ask("GET", "/toy/b/k", *SIGNED, "Host: any.example")
    assert (status, parse_error(content)["Code"]) == (421, "misdirected")
    assert (await ask("GET", "/toy/b/k", *SIGNED))[0] == 503  # and asks for no token


async def test_what_a_handler_raises(serve, caplog):
    ask = await serve()
    status, _, content = await ask("GET", "/toy-broken/conflict", *lines_of("/toy-broken/conflict"))
    assert (status, parse_error(content)["Message"]) == (409, "<no>")
    with caplog.at_level(logging.ERROR, "dfc.http"):
        status, _, content = await ask("GET", "/toy-broken/bug", *lines_of("/toy-broken/bug"))
    assert (status, parse_error(content)["Code"]) == (500, "internal_error")
    assert "KeyError" in caplog.text


async def test_a_face_that_cannot_render_an_error_hides_none(serve, caplog):
    with caplog.at_level(logging.ERROR, "dfc.http"):
        status, _, content = await (await serve())("GET", "/mute/conflict")
    assert (status, b'"code":"conflict"' in content) == (409, True)
    assert "a mistake in a face" in caplog.text


async def another(exchange, parameters):
    raise AssertionError("never called here")


ROUTES = [
    Route("/v1/objects/{bucket}/{object…}", {"GET": hello}),
    Route("/v1/buckets", {"GET": hello}),
    Route("/v1/buckets/{bucket}/objects", {"GET": hello}),
    Route("/v1/buckets/{bucket}", {"GET": hello, "PUT": another}),
    Route("/a.b", {"POST": hello}),
]


@pytest.mark.parametrize(
    ("path", "pattern", "parameters"),
    [
        ("/v1/buckets", "/v1/buckets", ()),
        ("/v1/buckets/x", "/v1/buckets/{bucket}", ("x",)),
        ("/v1/buckets/a%2Fb", "/v1/buckets/{bucket}", ("a%2Fb",)),
        ("/v1/buckets/x/objects", "/v1/buckets/{bucket}/objects", ("x",)),
        ("/v1/buckets/objects/objects", "/v1/buckets/{bucket}/objects", ("objects",)),
        ("/v1/objects/b/x", "/v1/objects/{bucket}/{object…}", ("b", "x")),
        ("/v1/objects/b/x/y//z/", "/v1/objects/{bucket}/{object…}", ("b", "x/y//z/")),
        ("/v1/objects/b/x\ny", "/v1/objects/{bucket}/{object…}", ("b", "x\ny")),
        ("/a.b", "/a.b", ()),
    ],
)
def test_paths_that_fit(path, pattern, parameters):
    route, found = Router(ROUTES).find(path)
    assert (route.pattern, found) == (pattern, parameters)


@pytest.mark.parametrize(
    "path",
    ["", "/", "/v1", "/v1/buckets/", "/v1/buckets/x/", "/v1/buckets/x/y", "/v1/objects/b", "/v1/objects/b/", "/axb",
     "/V1/buckets"],
)  # fmt: skip
def test_paths_that_do_not(path):
    assert Router(ROUTES).find(path) is None


def test_methods():
    route, _ = Router(ROUTES).find("/v1/buckets/x")
    assert route.handler("GET") is route.handler("HEAD") is hello
    assert route.handler("PUT") is another
    with pytest.raises(MethodNotAllowed) as caught:
        route.handler("DELETE")
    assert caught.value.headers["Allow"] == "GET, HEAD, PUT"
    post, _ = Router(ROUTES).find("/a.b")
    with pytest.raises(MethodNotAllowed) as caught:
        post.handler("HEAD")
    assert caught.value.headers["Allow"] == "POST"
