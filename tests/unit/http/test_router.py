"""Routes: patterns, the first that fits, methods, and HEAD by GET."""

from __future__ import annotations

import pytest

from dfc.errors import MethodNotAllowed
from dfc.http.faces import Route, Router


async def answer(exchange, parameters):
    raise AssertionError("never called here")


async def another(exchange, parameters):
    raise AssertionError("never called here")


ROUTES = [
    Route("/v1/objects/{bucket}/{object…}", {"GET": answer}),
    Route("/v1/buckets", {"GET": answer}),
    Route("/v1/buckets/{bucket}/objects", {"GET": answer}),
    Route("/v1/buckets/{bucket}", {"GET": answer, "PUT": another}),
    Route("/a.b", {"POST": answer}),
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
    [
        "",
        "/",
        "/v1",
        "/v1/buckets/",
        "/v1/buckets/x/",
        "/v1/buckets/x/y",
        "/v1/objects/b",
        "/v1/objects/b/",
        "/axb",
        "/V1/buckets",
    ],
)
def test_paths_that_do_not(path):
    assert Router(ROUTES).find(path) is None


def test_methods():
    route, _ = Router(ROUTES).find("/v1/buckets/x")
    assert route.handler("GET") is route.handler("HEAD") is answer
    assert route.handler("PUT") is another
    with pytest.raises(MethodNotAllowed) as caught:
        route.handler("DELETE")
    assert caught.value.headers["Allow"] == "GET, HEAD, PUT"
    post, _ = Router(ROUTES).find("/a.b")
    with pytest.raises(MethodNotAllowed) as caught:
        post.handler("HEAD")
    assert caught.value.headers["Allow"] == "POST"
