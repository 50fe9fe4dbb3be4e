"""Who may do what: tokens on every unsafe and internal route, pages of other origins and under other names, registrations, the
hop header."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from harness import Cluster
from security.conftest import RIGHT, TOKEN, Nodes
from security.wire import Wire, ask

from dfc.config import Settings
from dfc.http.faces import SESSION_S, Route, Sessions
from dfc.servers.proxy import ProxyNode
from dfc.servers.target import TargetNode

SAFE = ("GET", "HEAD", "OPTIONS")
WRONG: tuple[dict[str, str | bytes], ...] = (
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer "},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Authorization": f"bearer  {TOKEN}"},
    {"Authorization": TOKEN},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": b"Bearer \xff\xfe"},
    {"Authorization": b"Bearer " + "ſesame".encode()},
    {"X-Authorization": f"Bearer {TOKEN}"},
    {"Cookie": f"token={TOKEN}"},
)


@pytest.fixture
def guarded(strict: Nodes) -> Iterator[Nodes]:
    """The cluster with a token; what is stored and the map must stay as they are."""
    if strict.get("kept").status == 404:
        strict.put("kept", b"kept")
    before, map_before = strict.census.kept(), stable_map(strict)
    yield strict
    assert strict.census.stored() == before
    assert stable_map(strict) == map_before
    assert strict.get("kept").body == b"kept"
    strict.census.assert_settled()


def stable_map(nodes: Nodes) -> Any:
    """The map without what heartbeats change."""
    found = ask(nodes.proxy, "GET", "/v1/cluster").json()
    for node in found["nodes"]:
        del node["last_heartbeat"]
        for disk in node["disks"]:
            del disk["used"], disk["objects"], disk["capacity"], disk["file_system"]
    return found


def test_routes_between_nodes_are_internal() -> None:
    for kind in (ProxyNode, TargetNode):
        internal = [route for route in tables(kind) if route.pattern.startswith("/v1/node")]
        assert internal
        assert [route.pattern for route in internal if not route.internal] == []


LOGIN = "/ui/login"  # where a token is given in a form
ENDING = {"/ui/live": "?once=1"}  # answers that would go on for ever
KNOWN = {"{bucket}": "b", "{object…}": "kept"}


@cache
def tables(kind: type[ProxyNode | TargetNode]) -> list[Route]:
    """The routes of all faces of a node, the web namespace's left out: its one route is everything else."""

    async def look(directory: str) -> list[Route]:
        node = kind(Settings(dir=directory, disks=(f"{directory}/disk",), port=0))
        found = [route for face in node.server.faces for route in face.routes]
        assert [face.rest.pattern for face in node.server.faces if face.rest is not None] == ["/"]
        await node.stop()
        return found

    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(look(directory))


def routes(kind: type[ProxyNode | TargetNode]) -> list[tuple[str, str, bool, bool]]:
    """(method, path, internal, changes nothing) of every route of a node, from its own tables, and of the web namespace."""
    found = []
    for route in tables(kind):
        path = re.sub(r"\{[a-z_]+…?\}", lambda match: KNOWN.get(match[0], "0123"), route.pattern)
        path += ENDING.get(route.pattern, "")
        found += [(method, path, route.internal, method in SAFE or route.reads) for method in route.handlers]
    web = [("PUT", "/b/kept"), ("DELETE", "/b/kept"), ("PUT", "/new"), ("GET", "/b/kept"), ("GET", "/b/"), ("GET", "/")]
    return [*found, *((method, path, False, method in SAFE) for method, path in web)]


@pytest.mark.parametrize("kind", [ProxyNode, TargetNode])
def test_every_unsafe_and_internal_route_wants_the_token(guarded: Nodes, kind: type) -> None:
    url = guarded.proxy if kind is ProxyNode else guarded.owner("kept")
    asked = 0
    for method, path, internal, reads in routes(kind):
        if (reads and not internal) or path == LOGIN:
            continue
        for headers in WRONG:
            for body in (None, b"{}", b"z" * 200_000) if method not in SAFE else (None,):
                reply = ask(url, method, path, headers, body)
                assert (reply.status, reply.code) == (401, "unauthorized"), (method, path, headers, reply)
                assert reply.headers["www-authenticate"] == 'Bearer realm="dfc"'
        asked += 1
    assert asked >= 8


@cache
def session(token: str = TOKEN, age_s: float = 0.0) -> str:
    """What a browser sends that has logged in. Making the key of a token takes a twentieth of a second, so it is made once."""
    said = Sessions(token, lambda: time.time() - age_s).begin(token)
    assert said is not None
    return said.partition(";")[0]


def forged() -> list[str]:
    """Cookies that are none of a session that goes on."""
    name, _, value = session().partition("=")
    until, salt, sign = value.split(".")
    other = session("other")
    return [
        session(age_s=SESSION_S + 1),
        other,
        f"{name}={other.partition('=')[2]}",
        f"{name}={int(until) + 3600}.{salt}.{sign}",
        f"{name}={until}.{salt}.{'0' * 64}",
        f"{name}={until}.{salt}.",
        f"{name}={TOKEN}",
        f"{name}=",
        f"{name}",
    ]


@pytest.mark.parametrize("kind", [ProxyNode, TargetNode])
def test_a_session_counts_where_a_page_of_ours_says_so_and_nowhere_else(guarded: Nodes, kind: type) -> None:
    url = guarded.proxy if kind is ProxyNode else guarded.owner("kept")
    host, _, port = url.removeprefix("http://").partition(":")
    foreign = ("http://evil.example", "null", f"http://{host}:{int(port) + 1}", f"http://{host}", "http://localhost:1")
    asked = 0
    for method, path, internal, reads in routes(kind):
        for body in (None,) if method in SAFE else (b"{}", b"z" * 200_000):
            if internal:  # nodes have no browsers
                reply = ask(url, method, path, {"Cookie": session(), "Origin": url}, body)
                assert (reply.status, reply.code) == (401, "unauthorized"), (method, path, reply)
            if method in SAFE or path == LOGIN:
                continue
            reply = ask(url, method, path, {"Cookie": session()}, body)
            assert reads or (reply.status, reply.code) == (401, "unauthorized"), (method, path, reply)
            for origin in foreign:
                reply = ask(url, method, path, {"Cookie": session(), "Origin": origin}, body)
                assert (reply.status, reply.code) == (403, "forbidden"), (method, path, origin, reply)
            for cookie in forged():
                reply = ask(url, method, path, {"Cookie": cookie, "Origin": url}, body)
                assert reads or (reply.status, reply.code) == (401, "unauthorized"), (method, path, cookie, reply)
            asked += 1
    assert asked >= 8


def test_who_has_logged_in_may_do_what_the_token_may(strict: Nodes, name: str) -> None:
    """At any node: what one passes on to another, it passes on with the token."""
    for via in ("owner", "proxy", "other"):
        url = strict.url(via, name)
        mine = {"Cookie": f"a=b; {session()}", "Origin": url}
        for body in (b"x", b"x" * 300_000):
            assert ask(url, "PUT", f"/b/{name}", mine, body).status in (200, 201)
        assert ask(strict.proxy, "GET", f"/b/{name}").body == b"x" * 300_000
        assert ask(url, "DELETE", f"/b/{name}", mine).status == 204
    assert ask(strict.proxy, "POST", "/v1/cluster/scrub", {"Cookie": session(), "Origin": strict.proxy}, b"").status == 202


@pytest.mark.parametrize("via", ["owner", "proxy", "other"])
def test_what_a_session_has_read_is_kept_by_no_cache_on_the_way(strict: Nodes, name: str, via: str) -> None:
    for size in (10, 300_000):
        strict.put(name, b"x" * size)
        url = strict.url(via, name)
        asked = (("GET", f"/b/{name}"), ("HEAD", f"/b/{name}"), ("GET", "/v1/buckets"), ("GET", f"/b/{name}?none=1"))
        for method, path in asked:
            headers = ask(url, method, path, {"Cookie": session()}).headers
            assert (headers["cache-control"], headers["vary"]) == ("private", "Cookie"), (method, path)
            headers = ask(url, method, path).headers
            assert not headers.keys() & {"cache-control", "vary"}, (method, path)
    assert ask(strict.proxy, "GET", "/ui", {"Cookie": session()}).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("via", ["owner", "proxy", "other"])
def test_no_object_becomes_a_service_worker(nodes: Nodes, name: str, via: str) -> None:
    nodes.put(f"{name}.js", b"self.onfetch = null")
    url = nodes.url(via, f"{name}.js")
    assert ask(url, "GET", f"/b/{name}.js").status == 200
    reply = ask(url, "GET", f"/b/{name}.js", {"Service-Worker": "script"})
    assert (reply.status, reply.code) == (403, "forbidden")
    assert ask(nodes.proxy, "DELETE", f"/b/{name}.js").status == 204


def test_a_login_is_refused_to_pages_of_others_and_slowed(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster(targets=1, disks=1, environment={"DFC_TOKEN": TOKEN, "DFC_TOKEN_FOR_READS": "1"})
    url, form = cluster.url, {"Content-Type": "application/x-www-form-urlencoded", "Origin": cluster.url}
    right = f"token={TOKEN}&then=//evil.example/".encode()
    for origin in ("http://evil.example", "null", f"{url}0"):
        assert ask(url, "POST", LOGIN, {**form, "Origin": origin}, right).code == "forbidden"
    assert ask(url, "POST", LOGIN, {**form, "Host": "evil.example"}, right).code == "misdirected"
    assert ask(url, "GET", "/ui", {"Host": "evil.example"}).code == "misdirected"
    reply = ask(url, "GET", "/ui/buckets?")
    assert (reply.status, reply.headers["location"]) == (303, "/ui/login?then=%2Fui%2Fbuckets%3F")
    assert ask(url, "GET", "/ui/live").status == 303
    reply = ask(url, "POST", LOGIN, form, right)
    assert (reply.status, reply.headers["location"]) == (303, "/ui")
    cookie = reply.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    mine = {"Cookie": cookie.partition(";")[0]}
    assert ask(url, "GET", "/ui/buckets", mine).status == 200
    assert ask(url, "GET", "/v1/buckets", mine).status == 200
    assert ask(url, "GET", "/v1/buckets").status == 401
    for body in (b"token=", b"token=wrong", b"", b"token=a&token=b", b"\xff", b"=" * 70_000, b"a=b&" * 100):
        assert ask(url, "POST", LOGIN, form, body).status in (400, 401, 413)
    assert ask(url, "POST", LOGIN, {**form, "Content-Type": "text/plain"}, right).status == 400
    statuses = [ask(url, "POST", LOGIN, form, b"token=wrong").status for _ in range(8)]
    assert set(statuses) == {401, 429}
    reply = ask(url, "POST", LOGIN, form, right)
    assert (reply.status, reply.code) == (429, "too_many_logins")
    assert 1 <= int(reply.headers["retry-after"]) <= 61
    assert ask(url, "GET", "/ui/buckets", mine).status == 200
    assert ask(url, "POST", "/ui/logout", {**form, **mine}, b"").headers["set-cookie"].count("Max-Age=0") == 1


def test_reads_need_no_token_unless_it_is_asked_for(guarded: Nodes) -> None:
    for url in (guarded.proxy, guarded.owner("kept"), guarded.other("kept")):
        assert ask(url, "GET", "/b/kept").body == b"kept"
        assert ask(url, "GET", "/v1/health").status == 200
    assert ask(guarded.proxy, "POST", "/v1/cluster/scrub", RIGHT, b"").status == 202


BESIDE = (
    "/v1/%6eode/map", "/v1//node/map", "/v1/node/map/", "//v1/node/map", "/%76%31/node/map", "/v1/x/../node/map",
    "/V1/node/map", "/v1/Node/map", "/v1/node;x/map", "/v1/node/map;x", "/v1/node/map%20", "/v1/node%2fmap",
)  # fmt: skip


@pytest.mark.parametrize("path", BESIDE)
def test_paths_beside_a_route_do_not_reach_it(guarded: Nodes, path: str) -> None:
    for url in (guarded.proxy, guarded.owner("kept")):
        reply = ask(url, "POST", path, body=b"{}")
        assert reply.status in (400, 401, 404, 405), reply
        reply = ask(url, "POST", f"http://localhost{path}", body=b"{}")
        assert reply.status in (400, 401, 404, 405), reply


def registration(nodes: Nodes, **changes: Any) -> bytes:
    known = nodes.map.targets()[0]
    said = {
        "node_id": "intruder", "role": "target", "url": "http://127.0.0.1:9", "advertise_url": "http://127.0.0.1:9",
        "cluster_id": nodes.map.cluster_id, "disks": [{"id": known.disks[0].id, "weight": 1.0}],
    }  # fmt: skip
    return json.dumps({**said, **changes}).encode()


def test_registrations_without_the_token_change_nothing(guarded: Nodes) -> None:
    for headers in WRONG:
        reply = ask(guarded.proxy, "POST", "/v1/node/registration", headers, registration(guarded))
        assert (reply.status, reply.code) == (401, "unauthorized")
    for target in guarded.map.targets():
        body = json.dumps({"cluster_id": guarded.map.cluster_id, "version": 10**9}).encode()
        assert ask(target.url, "POST", "/v1/node/map", body=body).status == 401


GARBAGE: dict[str, dict[str, Any]] = {
    "another cluster": {"cluster_id": "0" * 16},
    "no such role": {"role": "king"},
    "no id": {"node_id": ""},
    "a path for an id": {"node_id": "../../x"},
    "a long id": {"node_id": "x" * 1000},
    "a script for a url": {"url": "javascript:alert(1)"},
    "a file for a url": {"advertise_url": "file:///etc/passwd"},
    "no url": {"url": ""},
    "a url with a line end": {"advertise_url": "http://a\r\nX: y"},
    "a url with markup": {"advertise_url": "http://a/<script>"},
    "a url with a user": {"advertise_url": "http://good@evil"},
    "a negative weight": {"disks": [{"id": "d", "weight": -1}]},
    "no weight": {"disks": [{"id": "d", "weight": 0}]},
    "a huge weight": {"disks": [{"id": "d", "weight": 1e300}]},
    "weight that is text": {"disks": [{"id": "d", "weight": "1"}]},
    "a negative capacity": {"disks": [{"id": "d", "weight": 1, "capacity": -5}]},
    "a disk id with a NUL": {"disks": [{"id": "d\0", "weight": 1}]},
    "a disk id that is long": {"disks": [{"id": "d" * 500, "weight": 1}]},
    "many disks": {"disks": [{"id": f"d{n}", "weight": 1} for n in range(5000)]},
    "a field too many": {"admin": True},
    "a list": {"disks": {"id": "d"}},
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_from_somebody_with_the_token_does_not_spoil_the_map(guarded: Nodes, what: str) -> None:
    reply = ask(guarded.proxy, "POST", "/v1/node/registration", RIGHT, registration(guarded, **GARBAGE[what]))
    assert reply.status in (400, 409), reply


# --- pages of other origins


@pytest.mark.parametrize("via", ["owner", "proxy", "other"])
def test_unsafe_methods_of_foreign_pages_are_403(unchanged: Nodes, name: str, via: str) -> None:
    url = unchanged.url(via, name)
    host = url.removeprefix("http://")
    for origin in (
        "http://evil.example", "null", "", f"http://{host}.evil.example", f"http://evil.example:{host}", f"http://{host}/",
        f"//{host}",
        "http://[evil", "file://", f"http://x@{host}", f"http://{host} http://evil.example", f"http://{host}0", "\xff",
    ):  # fmt: skip
        for method, path in (
            ("PUT", f"/b/{name}"),
            ("DELETE", f"/b/{name}"),
            ("PUT", f"/v1/objects/b/{name}"),
            ("POST", "/v1/node/registration"),
        ):
            for body in (b"x", b"x" * 300_000):
                reply = ask(url, method, path, {"Origin": origin.encode("latin-1")}, body)
                if path == "/v1/node/registration" and via != "proxy":
                    assert reply.status == 404
                else:
                    assert (reply.status, reply.code) == (403, "forbidden"), (origin, method, path, reply)
        assert ask(url, "GET", f"/b/{name}", {"Origin": origin.encode("latin-1")}).status == 404


def test_pages_of_this_server_may_write(nodes: Nodes, name: str) -> None:
    for via in ("owner", "proxy", "other"):
        url = nodes.url(via, name)
        assert ask(url, "PUT", f"/b/{name}", {"Origin": url}, b"x").status in (200, 201)
        assert ask(url, "PUT", f"/b/{name}", {"Origin": url}, b"x" * 300_000).status == 200
        # Before it may be a proxy with TLS that says so, or says nothing; then a page that came without TLS is not ours.
        by_tls = url.replace("http:", "https:")
        assert ask(url, "PUT", f"/b/{name}", {"Origin": by_tls}, b"x").status == 200
        assert ask(url, "PUT", f"/b/{name}", {"Origin": by_tls, "X-Forwarded-Proto": "https"}, b"x").status == 200
        assert ask(url, "PUT", f"/b/{name}", {"Origin": url, "X-Forwarded-Proto": "https"}, b"x").code == "forbidden"
        assert ask(url, "PUT", f"/b/{name}", {"Origin": url.replace("http:", "ftp:")}, b"x").code == "forbidden"
    assert ask(nodes.proxy, "DELETE", f"/b/{name}", {"Origin": nodes.proxy}).status == 204


# --- pages whose name resolves to this machine


REBOUND = (
    "evil.example", "EVIL.example", "evil.example.", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1.nip.io",
    "local.example", "evillocal.example", "home.arpa.example", "xn--80ak6aa92e.com", "0x7f.1", "127.1",
    "evil.example-local.org",
)  # fmt: skip
MALFORMED = (
    b"localhost@evil.example", b"evil%2eexample", b"evil.example#.local", b"evil.example/.local", b"evil.example\\.local",
    b"a b", b"localhost, evil.example", b"[::1", b"[evil.example]", b"::1", b"::1:8080", b"[::1]evil.example",
    b"localhost:80:80", b":80", b"localhost:port", b"evil\xe3\x80\x82example", b"e\xcc\x81vil", b"evil..example", b".local",
    b"*", b"a" * 64,
)  # fmt: skip
ANSWERED = (
    "127.0.0.1", "127.0.0.1:1", "10.1.2.3", "[::1]", "[::1]:8080", "[fe80::1%eth0]:80", "[fe80::1%25eth0]",
    "[::ffff:127.0.0.1]", "localhost", "LocalHost:8080", "localhost.", "dfc", "target-1:8080", "my_service", "2130706433",
    "machine.local", "a.b.local.", "a.localhost", "nas.home.arpa", "node-7.internal", "x.test",
    "dfc-0.dfc.default.svc.cluster.local",
)  # fmt: skip


@pytest.mark.parametrize("kind", [ProxyNode, TargetNode])
def test_no_route_answers_to_a_name_of_a_stranger(nodes: Nodes, kind: type) -> None:
    """What a page does that was loaded from http://evil.example:PORT, whose name then came to mean this machine."""
    if nodes.get("kept").status == 404:
        nodes.put("kept", b"kept")
    before, map_before = nodes.census.kept(), stable_map(nodes)
    url = nodes.proxy if kind is ProxyNode else nodes.owner("kept")
    evil = f"evil.example:{url.rpartition(':')[2]}"
    asked = 0
    for method, path, _, reads in routes(kind):
        if path == "/v1/health":
            assert ask(url, method, path, {"Host": evil}).status == 200
            continue
        for headers in ({"Host": evil}, {"Host": evil, "Origin": f"http://{evil}", "Sec-Fetch-Site": "same-origin"}):
            for body in (None, b"{}", b"z" * 200_000) if method not in SAFE else (None,):
                for target in (path, f"http://{evil}{path}"):
                    given = headers if target == path else {**headers, "Host": "localhost"}
                    reply = ask(url, method, target, given, body)
                    assert (reply.status, reply.code) == (421, "misdirected"), (method, target, given, reply)
                    assert b"allowed_hosts" in reply.body
                    assert reply.headers["connection"] == "close"
        if method == "GET":
            assert ask(url, "HEAD", path, {"Host": evil}).status == 421
            assert ask(url, "GET", path).status != 421
        asked += not reads
    assert asked >= 8
    assert nodes.census.stored() == before
    assert stable_map(nodes) == map_before
    assert nodes.get("kept").body == b"kept"


@pytest.mark.parametrize("via", ["owner", "proxy", "other"])
def test_hosts_that_are_answered_and_such_that_are_not(nodes: Nodes, name: str, via: str) -> None:
    nodes.put(name, b"abc")
    url = nodes.url(via, name)
    for host in ANSWERED:
        assert ask(url, "GET", f"/b/{name}", {"Host": host}).body == b"abc", host
        assert ask(url, "GET", f"http://{host.replace('%eth0', '')}/b/{name}", {"Host": "evil.example"}).body == b"abc", host
    for host in REBOUND:
        assert ask(url, "GET", f"/b/{name}", {"Host": host}).code == "misdirected", host
        assert ask(url, "GET", f"http://{host}/b/{name}").code == "misdirected", host
        assert ask(url, "DELETE", f"/b/{name}", {"Host": host}).code == "misdirected", host
    for raw in MALFORMED:
        assert ask(url, "DELETE", f"/b/{name}", {"Host": raw}).code == "bad_request", raw
    for given in (b"Host: localhost\r\nHost: evil.example\r\n", b"Host: localhost\r\nHost: localhost\r\n", b""):
        with Wire(url) as wire:
            wire.send(b"DELETE /b/%b HTTP/1.1\r\n" % name.encode() + given + b"\r\n")
            assert wire.answer().code == "bad_request", given
    assert nodes.get(name).body == b"abc"


def test_a_request_without_a_host_is_answered(nodes: Nodes, name: str) -> None:
    """Probes of balancers speak HTTP/1.0; browsers do not."""
    nodes.put(name, b"abc")
    for head in (b"GET /b/%b HTTP/1.0\r\n\r\n", b"GET /b/%b HTTP/1.1\r\nHost:\r\n\r\n"):
        with Wire(nodes.proxy) as wire:
            wire.send(head % name.encode())
            assert wire.answer().body == b"abc", head
    with Wire(nodes.proxy) as wire:  # without a host, there is no origin that a page could share with it
        wire.send(b"DELETE /b/%b HTTP/1.1\r\nHost:\r\nOrigin: null\r\n\r\n" % name.encode())
        assert wire.answer().code == "forbidden"


def test_nodes_and_metrics_are_reached_by_the_url_of_each_node(nodes: Nodes) -> None:
    for url in (nodes.proxy, *(node.url for node in nodes.map.targets())):
        for path in ("/metrics", "/v1/health", "/v1/cluster"):
            assert ask(url, "GET", path).status == 200
    for node in nodes.map.targets():
        assert ask(node.url, "GET", "/v1/node/staged").status == 200


def test_where_reads_want_the_token_any_name_will_do(start_cluster: Callable[..., Cluster]) -> None:
    """A browser adds no token to what a page asks for; a proxy in front may then have any name."""
    cluster = start_cluster(targets=1, disks=1, environment={"DFC_TOKEN": TOKEN, "DFC_TOKEN_FOR_READS": "1"})
    targets = [node["url"] for node in ask(cluster.url, "GET", "/v1/cluster", RIGHT).json()["nodes"]]
    for url in (cluster.url, *targets):
        for headers, status in (({}, 401), (RIGHT, 200)):
            assert ask(url, "GET", "/v1/buckets", {"Host": "evil.example", **headers}).status == status


def test_names_that_the_settings_admit(start_cluster: Callable[..., Cluster], name: str) -> None:
    environment = {"DFC_ALLOWED_HOSTS": "data.example, Shards.Example.", "DFC_ADVERTISE_URL": "http://cdn.example:0"}
    proxy = start_cluster(targets=1, disks=1, environment=environment).url.replace("cdn.example", "127.0.0.1")
    [target] = [node["url"] for node in ask(proxy, "GET", "/v1/cluster").json()["nodes"]]
    for url in (proxy, target):
        for host in ("data.example", "DATA.example:80", "shards.example", "cdn.example:8080", "localhost"):
            origin = {"Host": host, "Origin": f"http://{host}"}
            assert ask(url, "PUT", f"/b/{name}", origin, b"abc").status in (200, 201), host
            assert ask(url, "GET", "/b/", {"Host": host}).body == f"{name}\n".encode(), host
        for host in ("evil.example", "x.data.example", "a.example"):
            assert ask(url, "GET", "/b/", {"Host": host}).code == "misdirected", host


# --- relays


def test_a_hop_header_from_outside_makes_no_loop(nodes: Nodes, name: str) -> None:
    nodes.put(name, b"abc")
    for value in ("1", "0", "", "x" * 1000):
        assert ask(nodes.proxy, "GET", f"/b/{name}", {"X-DFC-Hop": value}).body == b"abc"
        assert ask(nodes.owner(name), "GET", f"/b/{name}", {"X-DFC-Hop": value}).body == b"abc"
        reply = ask(nodes.other(name), "GET", f"/b/{name}", {"X-DFC-Hop": value})
        assert (reply.status, reply.code) == (503, "unavailable")
        reply = ask(nodes.other(name), "PUT", f"/b/{name}", {"X-DFC-Hop": value}, b"x" * 200_000)
        assert (reply.status, reply.code) == (503, "unavailable")
    assert nodes.get(name).body == b"abc"


def test_a_relay_passes_no_header_that_is_for_one_hop(nodes: Nodes, name: str) -> None:
    """What a client says of its own connection must not end or reframe the one behind the relay, which others use next."""
    nodes.put(name, b"abc")
    for headers in (
        {"Connection": "close"}, {"Connection": "close, X-DFC-Hop"}, {"Connection": "Host"}, {"Proxy-Connection": "close"},
        {"Keep-Alive": "timeout=0"}, {"TE": "trailers"}, {"Trailer": "X"}, {"Expect": "100-continue"}, {"Expect": "nonsense"},
        {"Upgrade": "h2c", "Connection": "upgrade"}, {"Max-Forwards": "0"}, {"Proxy-Authorization": "Basic x"},
        {"Content-Encoding": "gzip"}, {"X-Forwarded-Host": "evil.example"}, {"Forwarded": "host=evil.example"},
    ):  # fmt: skip
        for via in ("proxy", "other"):
            assert ask(nodes.url(via, name), "GET", f"/b/{name}", headers).body == b"abc", headers
            with Wire(nodes.url(via, name)) as wire:
                wire.head("PUT", f"/b/{name}", {**headers, "Content-Length": "3"})
                wire.send(b"abc")
                reply = wire.answer()
                if reply.status == 100:
                    reply = wire.answer()
                assert reply.status == 200, (headers, reply)


def test_redirects_lead_only_to_nodes(nodes: Nodes, name: str) -> None:
    nodes.put(name, b"abc")
    owner = nodes.owner(name)
    for target in (f"/v1/objects/b/{name}", f"http://localhost/v1/objects/b/{name}", f"http://x@127.0.0.1/v1/objects/b/{name}"):
        reply = ask(nodes.proxy, "GET", target, {"Host": "stranger", "X-Forwarded-Host": "evil.example"})
        assert (reply.status, reply.headers["location"]) == (307, f"{owner}/v1/objects/b/{name}")
    for target in ("//evil.example/%2e%2e", "/v1/objects//evil.example", "/v1/objects/b/%0d%0aX:%20y", "/\\evil.example"):
        reply = ask(nodes.proxy, "GET", f"{target}?redirect=1")
        assert reply.status in (400, 404), reply
        assert "location" not in reply.headers


def test_both_kinds_of_nodes_have_the_same_public_routes() -> None:
    """What only the other kind can answer is passed on; a client need not know to whom it speaks. Browsers are sent there."""
    others = ("/v1/node/", "/ui", "/favicon.ico")
    public = {
        kind: {(method, path) for method, path, internal, _ in routes(kind) if not internal and not path.startswith(others)}
        for kind in (ProxyNode, TargetNode)
    }
    assert public[ProxyNode] == public[TargetNode]
    assert len(public[ProxyNode]) > 20
