"""Requests at random, and nodes that answer at random: nobody gets what is not theirs, no node meets an unexpected error."""

from __future__ import annotations

import http.client
import random
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from failures.nodes import Nodes
from harness import Cluster, wait_for
from job_shards import samples, tar_of
from security.fuzz import GOOD, Attack, Victim, accessed
from security.liars import Liars
from security.wire import ask

CLIENTS = 8
READ_MAX = 1 << 20  # of an answer
GRACE_S = 60
SECONDS = (20, pytest.param(600, marks=[pytest.mark.long, pytest.mark.timeout(900)]))


@pytest.fixture(scope="module")
def logged(start_cluster: Callable[..., Cluster]) -> Cluster:
    """A cluster whose nodes log each request, with what the attack reads."""
    cluster = start_cluster(targets=2, disks=1, environment={"DFC_ACCESS_LOG": "1", "DFC_BODY_GRACE_S": "2"})
    for name, body in GOOD.items():
        assert ask(cluster.url, "PUT", f"/b/{name}", None, body).status == 201
    return cluster


@pytest.mark.parametrize("seconds", SECONDS)
def test_no_request_gets_into_another_one(logged: Cluster, seconds: float) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    urls = [logged.url, *logged.target_urls()]
    victims = [Victim(number, urls[number % 3], seed) for number in range(3)]
    attack = Attack(urls, random.Random(seed))
    for each in victims:
        each.start()
    until = time.monotonic() + seconds
    attack.run(lambda: time.monotonic() > until)
    for each in victims:
        each.stop()
    assert attack.wrong == []
    assert [text for each in victims for text in each.wrong] == []
    assert min(each.requests for each in victims) > seconds / 2
    assert attack.statuses.total() > 10 * seconds  # on a busy machine; alone it is ten times that
    assert {200, 201, 400, 404} <= attack.statuses.keys()
    relayed_as_it_came(logged, attack)
    for url in urls:
        assert ask(url, "GET", "/v1/health").status == 200
    for log in (logged.directory / "logs").glob("*.log"):
        assert '"traceback"' not in log.read_text()


def relayed_as_it_came(cluster: Cluster, attack: Attack) -> None:
    """Whatever a target has taken for a request was one to the proxy, too, unless it came from the client itself."""
    logs = cluster.directory / "logs"

    def smuggled() -> list[tuple[str, str]]:
        """The logs of two nodes are written at their own times."""
        known = accessed(logs / "proxy.log")
        return [
            (request_id, path)
            for log in logs.glob("target-*.log")
            for request_id, path in accessed(log) - known
            if request_id.startswith(("fuzz", "hid")) and attack.went_to_proxy(request_id)
        ]

    found = smuggled()
    assert not found or wait_for(lambda: not smuggled(), f"the proxy to know of {found[:5]}", 10)


# --- nodes that answer at random


@pytest.mark.parametrize("seconds", SECONDS)
def test_what_a_node_may_answer_is_no_error_of_others(tmp_path: Path, seconds: float) -> None:
    """Whatever comes on the way between nodes: those who asked say 502 or 503 and go on."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    network = Liars(random.Random(seed))
    nodes = Nodes(tmp_path, 2, 1, network=network, down_after_s=60, default_copies=2, peer_timeout_s=1)
    with closing(network), nodes:
        nodes.start_all()
        # On a busy machine a node may be slower than `peer_timeout_s`.
        for name, body in {**GOOD, "s-000000.tar": tar_of(samples(["a", "b"], txt="{key}"))}.items():
            nodes.until(lambda name=name, body=body: ask(nodes.url, "PUT", f"/b/{name}", None, body).status in (200, 201), name)
        network.lying.set()
        until = time.monotonic() + seconds

        def use(number: int) -> list[int]:
            draw, found = random.Random(f"{seed} {number}"), list[int]()
            # A body that a liar has made endless may keep all clients waiting for a while.
            while time.monotonic() < until or (network.changed <= seconds and time.monotonic() < until + GRACE_S):
                found.append(one_answer(nodes, draw))
            return found

        with ThreadPoolExecutor(CLIENTS) as pool:
            statuses = Counter(status for each in pool.map(use, range(CLIENTS)) for status in each)
        network.lying.clear()
        assert network.changed > seconds
        assert statuses.total() > seconds
        # What a node may say of an object is passed on: that it was damaged, or is not there.
        assert statuses.keys() <= {0, 200, 201, 204, 206, 304, 404, 412, 421, 500, 502, 503}, statuses
        nodes.until(lambda: nodes.ask("/v1/cluster/status")["health"] == "ok", "all to be well again", 60)
        for name, body in GOOD.items():
            nodes.until(lambda name=name: ask(nodes.url, "GET", f"/b/{name}").status == 200, name)
            assert ask(nodes.url, "GET", f"/b/{name}").body == body
    for log in nodes.directory.glob("*.log"):
        assert '"traceback"' not in log.read_text(), log


ASKED = (
    ("GET", "/b/g{n}"), ("GET", "/b/g{n}"), ("HEAD", "/b/g{n}"), ("GET", "/b/"), ("GET", "/v1/buckets"), ("PUT", "/b/p{n}"),
    ("DELETE", "/b/p{n}"), ("GET", "/v1/buckets/b/objects?limit=3"), ("GET", "/v1/buckets/b/samples"),
    ("GET", "/v1/cluster/stats"), ("GET", "/b/s-000000.tar?list=samples"), ("GET", "/b/s-000000.tar?sample=a&ext=txt"),
    ("POST", "/v1/batch"),
    ("GET", "/v1/buckets/b/samples?key=a"), ("GET", "/v1/buckets/b/datasets"),
)  # fmt: skip


def one_answer(nodes: Nodes, draw: random.Random) -> int:
    """The status of an answer of the proxy; 0 if it was broken off. It leads nowhere else, and has no header of a liar."""
    method, path = draw.choice(ASKED)
    body = {"POST": b'{"items":[{"bucket":"b","object":"g1"},{"bucket":"b","object":"g7"}]}', "PUT": b"x" * 10}.get(method)
    request = urllib.request.Request(nodes.url + path.format(n=draw.randrange(8)), body, method=method)
    try:
        try:
            answer = OPENER.open(request, timeout=20)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            content = answer.read(READ_MAX)  # a liar may announce 100 GB, for which memory would be taken at once
    except (OSError, http.client.HTTPException):
        return 0
    assert b'"internal_error"' not in content
    assert "evil.example" not in str(answer.headers)
    return int(answer.status)


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirects)
