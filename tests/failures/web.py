"""Requests of a user to a cluster of nodes, for tests of copies."""

from __future__ import annotations

import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from failures.nodes import Nodes

NAMES = [f"o{number:02}" for number in range(16)]


class Web:
    """Requests to the proxy, which passes on what it does not redirect."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self._client = httpx.Client(base_url=nodes.url, timeout=30)

    def close(self) -> None:
        self._client.close()

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._client.request(method, path, content=body, headers=named)

    def object(self, method: str, path: str, body: bytes | None = None, **headers: str) -> httpx.Response:
        return self.ask(method, f"/v1/objects/{path}?relay=1", body, **headers)

    def put(self, path: str, body: bytes, **headers: str) -> httpx.Response:
        return self.object("PUT", path, body, **headers)

    def get(self, path: str, patience_s: float = 0.0) -> bytes | None:
        """The bytes of an object; None: there is none. `patience_s`: for how long 503 is an answer to try again after."""
        until_s = time.monotonic() + patience_s
        while (answer := self.object("GET", path)).status_code == 503 and time.monotonic() < until_s:
            time.sleep(0.2)
        assert answer.status_code in (200, 404), (path, answer.status_code, answer.text[:300])
        return answer.content if answer.status_code == 200 else None

    def bucket(self, name: str) -> Any:
        answer = self.ask("GET", f"/v1/buckets/{name}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def create(self, name: str, copies: int = 2, durability: str = "fsync") -> str:
        """Create a bucket; its id."""
        settings = json.dumps({"copies": copies, "durability": durability}).encode()
        answer = self.ask("PUT", f"/v1/buckets/{name}", settings)
        assert answer.status_code == 201, answer.text
        assert (answer.json()["copies"], answer.json()["copies_wanted"]) == (copies, copies)
        return self.nodes.bucket_id(name)

    def names(self, bucket: str, **parameters: str) -> list[str]:
        answer = self._client.get(f"/v1/buckets/{bucket}/objects", params={"limit": "1000", **parameters})
        assert answer.status_code == 200, answer.text
        return [each["name"] for each in answer.json()["objects"]]

    def put_patiently(self, path: str, body: bytes) -> httpx.Response:
        """A PUT that is repeated while it is answered 503, as clients do: the test before may have left disks that catch up."""
        deadline_s = time.monotonic() + 30
        while (answer := self.put(path, body)).status_code == 503 and time.monotonic() < deadline_s:
            time.sleep(0.2)
        return answer

    def fill(self, bucket: str, names: list[str] = NAMES, tag: str = "") -> dict[str, bytes]:
        """Objects of all sizes, each on two disks; or on three, where one that was slow got its copy after a handoff
        replica."""
        bodies = {name: content(name, tag) for name in names}
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda name: self.put_patiently(f"{bucket}/{name}", bodies[name]), names))
        for name, answer in zip(names, answers, strict=True):
            assert answer.status_code in (200, 201), (name, answer.text)
            assert answer.json()["copies"] >= 2, (name, answer.json())
        return bodies

    def check(self, bucket: str, bodies: dict[str, bytes | None], patience_s: float = 0.0) -> None:
        with ThreadPoolExecutor(4) as threads:
            found = dict(zip(bodies, threads.map(lambda name: self.get(f"{bucket}/{name}", patience_s), bodies), strict=True))
        assert {name for name in bodies if found[name] != bodies[name]} == set()


def content(name: str, tag: str = "") -> bytes:
    draw = random.Random(name + tag)
    return draw.randbytes(draw.choice((0, 10, 5_000, 100_000, 400_000)))
