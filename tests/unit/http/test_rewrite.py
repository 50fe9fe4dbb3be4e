"""What a foreign face rewrites of what the relay passes on: the request that a node gets, its answer, and its errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from one_face import CALM, client_of, serving
from scripted_node import Upstream, always, answer, once
from toy_face import ToyFace, parse_error, signed

from dfc.http.faces import Route
from dfc.http.peer import PeerPool
from dfc.http.relay import Relay
from dfc.http.server import NodeServer
from dfc.limits import ERROR_BODY_BYTES_MAX

LARGE = 3_000_000
MEDIUM = 600_000  # more than is read before it is passed on, less than is read away of a body that nobody wants
PATH = "/toy/b/a%20b"


@pytest.fixture
async def client(upstream: Upstream) -> AsyncIterator[httpx.AsyncClient]:
    """Asks a server whose toy face passes everything on to the upstream."""
    pool = PeerPool(5.0)

    async def there(method: str, bucket: str, key: str) -> str:
        return upstream.url

    own = serving(CALM, [], Route("/", {}, query=None)).faces
    async with client_of(NodeServer(CALM, [*own, ToyFace(Relay(pool, 2.0), there, "secret").face()])) as made:
        yield made
    pool.close()


async def ask(client: httpx.AsyncClient, method: str, path: str = PATH, **more: object) -> httpx.Response:
    headers = {**signed(method, path.partition("?")[0]), **more.pop("headers", {})}  # type: ignore[dict-item]
    return await client.request(method, path, headers=headers, **more)  # type: ignore[arg-type]


async def test_the_request_goes_to_another_path_with_the_token_of_the_node(upstream, client):
    upstream.scripts = [always(upstream, answer())]
    given = {"Authorization": "Toy credentials", "Range": "bytes=0-1", "X-Request-Id": "mine", "Origin": "http://a"}
    assert (await ask(client, "GET", headers=given)).content == b"ok"
    first, *lines = upstream.heads[0].lower().rstrip().split("\r\n")
    assert first == "get /v1/objects/b/a%20b http/1.1"
    assert [line for line in lines if line.startswith("authorization")] == ["authorization: bearer secret"]
    assert {"range: bytes=0-1", "x-request-id: mine", "x-dfc-hop: 1", f"host: {upstream.url[7:]}"} <= set(lines)
    assert not [line for line in lines if line.startswith(("x-toy", "origin"))]


@pytest.mark.parametrize("size", [0, 10, LARGE])
@pytest.mark.parametrize("chunked", [False, True])
async def test_answers_have_their_headers_renamed(upstream, client, size, chunked):
    body, extra = bytes(size), 'X-DFC-Checksum: c\r\nETag: "c"\r\n'
    reply = answer(headers=extra, body=body)
    if chunked:
        pieces = (b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:5], body[5:]) if piece)
        reply = f"HTTP/1.1 200 OK\r\n{extra}Transfer-Encoding: chunked\r\n\r\n".encode() + b"".join(pieces) + b"0\r\n\r\n"
    upstream.scripts = [always(upstream, reply)]
    response = await ask(client, "GET")
    assert (response.status_code, response.content) == (200, body)
    found = {name: response.headers.get(name) for name in ("X-Toy-Checksum", "ETag", "X-Toy-Status", "X-DFC-Checksum")}
    assert found == {"X-Toy-Checksum": "c", "ETag": '"c"', "X-Toy-Status": "200", "X-DFC-Checksum": None}


@pytest.mark.parametrize("head", ["HTTP/1.1 304 Not Modified\r\n", "HTTP/1.1 204 No Content\r\n"])
async def test_answers_without_a_body_too(upstream, client, head):
    upstream.scripts = [always(upstream, f"{head}X-DFC-A: 1\r\n\r\n".encode())]
    response = await ask(client, "GET")
    assert (response.headers["X-Toy-A"], response.headers["X-Toy-Status"]) == ("1", str(response.status_code))


async def test_the_head_of_an_answer(upstream, client):
    upstream.scripts = [always(upstream, b"HTTP/1.1 200 OK\r\nX-DFC-A: 1\r\nContent-Length: 3000000\r\n\r\n")]
    response = await ask(client, "HEAD")
    assert (response.headers["X-Toy-A"], response.headers["Content-Length"], response.content) == ("1", "3000000", b"")
    assert (await ask(client, "HEAD")).status_code == 200
    assert upstream.connections == 1  # an answer that is no error leaves the connection for the next request


ERRORS = {
    "404 Not Found": "object_not_found", "412 Precondition Failed": "precondition_failed",
    "503 Service Unavailable": "unavailable", "409 Conflict": "bucket_deleting",
    "500 Internal Server Error": "object_corrupt", "507 Insufficient Storage": "no_space",
}  # fmt: skip


async def error(client: httpx.AsyncClient) -> tuple[int, str]:
    """Status and code of the answer to a GET."""
    response = await ask(client, "GET")
    return response.status_code, parse_error(response.content)["Code"]


def error_body(code: str, size: int = 0) -> bytes:
    message = f"<why> {'x' * size}".strip()
    return json.dumps({"error": {"code": code, "message": message, "request_id": "theirs"}}).encode()


@pytest.mark.parametrize("status", ERRORS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("form", ["small", "large", "chunked", "until the end"])
async def test_errors_are_rendered_by_the_face(upstream, client, status, method, form):
    content = error_body(ERRORS[status], ERROR_BODY_BYTES_MAX - 200 if form == "large" else 0)
    own = "X-Request-Id: theirs\r\nRetry-After: 9\r\n"
    reply = answer(status, content, own)
    if form == "chunked":
        half = len(content) // 2
        pieces = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (content[:half], content[half:]))
        reply = f"HTTP/1.1 {status}\r\n{own}Transfer-Encoding: chunked\r\n\r\n".encode() + pieces + b"0\r\n\r\n"

    async def and_close(reader, writer):
        head = await upstream.head(reader)
        if "content-length: 2" in head.lower():
            await reader.readexactly(2)
        writer.write(f"HTTP/1.1 {status}\r\n{own}Connection: close\r\n\r\n".encode() + content)

    upstream.scripts = [and_close if form == "until the end" else always(upstream, reply)]
    for number in (1, 2):
        response = await ask(client, method, content=b"xy" if method == "PUT" else None)
        assert f"{response.status_code}" == status[:3]
        error = parse_error(response.content)
        assert (error["Code"], error["Message"][:5]) == (ERRORS[status], "<why>")
        assert response.headers.get_list("X-Request-Id") == [error["RequestId"]]
        assert error["RequestId"] != "theirs"
        assert (response.headers["Retry-After"], response.headers["Content-Type"]) == ("9", "application/xml")
        assert upstream.connections == number  # the one that had an error is not used again


@pytest.mark.parametrize(("status", "code"), [("404 Not Found", "object_not_found"), ("503 Busy", "unavailable")])
async def test_the_error_of_a_head_request(upstream, client, status, code):
    upstream.scripts = [always(upstream, f"HTTP/1.1 {status}\r\nContent-Length: 900\r\nRetry-After: 9\r\n\r\n".encode())]
    for number in (1, 2):
        response = await ask(client, "HEAD")
        assert (f"{response.status_code}", response.content) == (status[:3], b"")
        assert response.headers["Content-Type"] == "application/xml"
        assert upstream.connections == number
    same = parse_error((await ask(client, "GET", PATH + "?other")).content)  # and the client's connection is still good
    assert same["Code"] == "bad_request"


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_error_that_says_too_much_is_known_by_its_status(upstream, client, chunked):
    content = error_body("object_not_found", ERROR_BODY_BYTES_MAX)
    reply = answer("409 Conflict", content)
    if chunked:
        piece = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
        reply = b"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n" + piece
    upstream.scripts = [always(upstream, reply)]
    assert await error(client) == (409, "conflict")


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"error": 1}'])
async def test_an_error_of_a_stranger_is_known_by_its_status(upstream, client, body):
    upstream.scripts = [always(upstream, answer("502 Bad Gateway", body))]
    assert await error(client) == (503, "unavailable")


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 50\r\n\r\n{",
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"nonsense",
        b"",
    ],
)
async def test_an_error_that_breaks_off_is_none(upstream, client, reply):
    upstream.scripts = [once(upstream, reply)]
    assert await error(client) == (503, "unavailable")


@pytest.mark.parametrize("begun", [b"Content-Length: 50\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\nab"])
async def test_an_error_that_stalls_is_not_waited_for_for_ever(upstream, client, begun):
    async def stall(reader, writer):
        await upstream.head(reader)
        writer.write(b"HTTP/1.1 404 Not Found\r\n" + begun)
        await upstream.over.wait()

    upstream.scripts = [stall]
    assert await error(client) == (503, "unavailable")


@pytest.mark.parametrize("expects", [False, True])
async def test_an_error_that_comes_before_a_large_body_is_taken(upstream, client, expects):
    """The client hears it, in the face's form; the connection of a body that is left over ends."""

    async def early(reader, writer):
        await upstream.head(reader)
        writer.write(answer("412 Precondition Failed", error_body("precondition_failed")))
        await reader.read()  # a close now would reset the connection, and the answer might be lost

    upstream.scripts = [early]
    headers = {"Expect": "100-continue"} if expects else {}
    response = await ask(client, "PUT", content=bytes(MEDIUM), headers=headers)
    assert (response.status_code, parse_error(response.content)["Code"]) == (412, "precondition_failed")
    if expects:  # else the node may have taken all of it
        assert response.headers["Connection"] == "close"
    assert upstream.connections == 1
    assert (await ask(client, "PUT", content=bytes(MEDIUM), headers=headers)).status_code == 412
    assert upstream.connections == 2


async def test_a_node_that_is_not_there(upstream, client):
    upstream.server.close()
    upstream.scripts = [always(upstream, answer())]
    assert await error(client) == (503, "unavailable")
