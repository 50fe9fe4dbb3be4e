"""The load scenarios: put, get, range, sample, small, list, mixed. Each checks every byte it reads and every answer to a PUT.

All of them use the web namespace of API section 1 and the bucket calls of section 3, so any DFC node can serve them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import xxhash

from loadtest.bodies import Body, SampleShard, make_sample_shard
from loadtest.connection import Answer, Connection, HttpFailure
from loadtest.runner import Scenario, Worker

LIST_PAGE = 250


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of data of a run; sizes in bytes."""

    object_bytes: int = 16 << 20
    objects: int = 8
    range_bytes: int = 1 << 20
    small_bytes: int = 1024
    small_objects: int = 500
    shards: int = 2
    samples: int = 200
    member_bytes: int = 10_000


def create_bucket(connection: Connection, bucket: str) -> None:
    """Create the bucket of a run. HttpFailure if the server refuses."""
    answer = connection.request("PUT", f"/v1/buckets/{bucket}", body=b"{}", headers={"Content-Type": "application/json"})
    expect(answer, 200, 201)


def remove_bucket(connection: Connection, bucket: str) -> None:
    """Remove the bucket of a run with its contents."""
    expect(connection.request("DELETE", f"/v1/buckets/{bucket}?force=1"), 204, 404)


def expect(answer: Answer, *statuses: int) -> Answer:
    """Return the answer. HttpFailure if its status is not one of these."""
    if answer.status not in statuses:
        raise HttpFailure(f"status_{answer.status}", answer.body[:200].decode("utf-8", "replace"))
    return answer


def put_body(connection: Connection, path: str, body: Body) -> None:
    """Store a body, and check the size and checksum in the answer."""
    answer = expect(connection.request("PUT", path, body=body.pieces(), size=body.size), 200, 201)
    check_stored(answer, body.size, body.checksum())


def check_stored(answer: Answer, size: int, checksum: str) -> None:
    """Check the size and checksum in the answer to a PUT."""
    stored = answer.json()
    if not isinstance(stored, dict) or stored.get("size") != size or checksum not in str(stored.get("checksum")):
        raise HttpFailure("put_answer", f"{stored!r} instead of {size} bytes with {checksum}")


def get_body(connection: Connection, path: str, body: Body, checksum: str | None = None) -> int:
    """Read a whole object and check its checksum. Returns the number of bytes."""
    digest = xxhash.xxh3_128()
    expect(connection.download(path, digest.update), 200)
    if digest.hexdigest() != (checksum or body.checksum()):
        raise HttpFailure("wrong_bytes", path)
    return body.size


class _Nothing:
    """Defaults for the optional parts of a scenario."""

    def verify(self, connection: Connection) -> None:
        """Do nothing, since everything was checked at once."""


class PutScenario:
    """Large PUTs: each worker alternates between two names, whose last bodies are read back at the end."""

    name = "put"

    def __init__(self, bucket: str, sizes: Sizes) -> None:
        self._bucket = bucket
        self._size = sizes.object_bytes
        self._last: dict[str, Body] = {}

    def prepare(self, connection: Connection) -> None:
        self._last.clear()

    def step(self, worker: Worker) -> int:
        path = f"/{self._bucket}/put/{worker.index:03d}-{worker.steps % 2}.bin"
        body = Body(worker.index * 1_000_003 + worker.steps, self._size)
        self._last.pop(path, None)  # after a failure, either body may be stored
        put_body(worker.connection, path, body)
        self._last[path] = body
        return body.size

    def verify(self, connection: Connection) -> None:
        for path, body in self._last.items():
            get_body(connection, path, body)


class GetScenario(_Nothing):
    """GETs of whole large objects, checksums compared."""

    name = "get"

    def __init__(self, bucket: str, sizes: Sizes) -> None:
        self._objects = [
            (f"/{bucket}/get/{number:04d}.bin", body, body.checksum())
            for number, body in ((number, Body(number, sizes.object_bytes)) for number in range(sizes.objects))
        ]

    def prepare(self, connection: Connection) -> None:
        for path, body, _ in self._objects:
            put_body(connection, path, body)

    def step(self, worker: Worker) -> int:
        path, body, checksum = worker.random.choice(self._objects)
        return get_body(worker.connection, path, body, checksum)


class RangeScenario(_Nothing):
    """GETs of byte ranges at random offsets, bytes compared."""

    name = "range"

    def __init__(self, bucket: str, sizes: Sizes) -> None:
        self._objects = [(f"/{bucket}/range/{number:04d}.bin", Body(number, sizes.object_bytes)) for number in range(2)]
        self._length = min(sizes.range_bytes, sizes.object_bytes)

    def prepare(self, connection: Connection) -> None:
        for path, body in self._objects:
            put_body(connection, path, body)

    def step(self, worker: Worker) -> int:
        path, body = worker.random.choice(self._objects)
        start = worker.random.randrange(body.size - self._length + 1)
        end = start + self._length
        answer = expect(worker.connection.request("GET", path, headers={"Range": f"bytes={start}-{end - 1}"}), 206)
        if answer.body != body.read(start, end):
            raise HttpFailure("wrong_bytes", f"{path} {start}-{end - 1}")
        return len(answer.body)


class SampleScenario(_Nothing):
    """GETs of single members of samples in shards, by key, bytes compared."""

    name = "sample"

    def __init__(self, bucket: str, sizes: Sizes) -> None:
        self._bucket = bucket
        self._sizes = sizes
        self._samples: list[tuple[str, Body]] = []

    def prepare(self, connection: Connection) -> None:
        self._samples.clear()
        for number in range(self._sizes.shards):
            self._put_shard(
                connection, make_sample_shard(f"{number:04d}.tar", number, self._sizes.samples, self._sizes.member_bytes)
            )

    def _put_shard(self, connection: Connection, shard: SampleShard) -> None:
        path = f"/{self._bucket}/sample/{shard.name}"
        answer = expect(connection.request("PUT", path, body=shard.data), 200, 201)
        check_stored(answer, len(shard.data), xxhash.xxh3_128_hexdigest(shard.data))
        self._samples += [(f"{path}?sample={quote(key, safe='')}&ext=jpg", body) for key, body in shard.images.items()]

    def step(self, worker: Worker) -> int:
        path, body = worker.random.choice(self._samples)
        answer = expect(worker.connection.request("GET", path), 200)
        if answer.body != body.read():
            raise HttpFailure("wrong_bytes", path)
        return len(answer.body)


class SmallScenario(_Nothing):
    """GETs of small objects over kept-alive connections, bytes compared."""

    name = "small"

    def __init__(self, bucket: str, sizes: Sizes) -> None:
        self._objects = [
            (f"/{bucket}/small/{number:06d}", Body(number, sizes.small_bytes).read()) for number in range(sizes.small_objects)
        ]

    def prepare(self, connection: Connection) -> None:
        for path, body in self._objects:
            expect(connection.request("PUT", path, body=body), 200, 201)

    def step(self, worker: Worker) -> int:
        path, body = worker.random.choice(self._objects)
        answer = expect(worker.connection.request("GET", path), 200)
        if answer.body != body:
            raise HttpFailure("wrong_bytes", path)
        return len(body)


class ListScenario(_Nothing):
    """Listings, one page per step. All pages together must give exactly the stored names, in byte order."""

    name = "list"

    def __init__(self, bucket: str, sizes: Sizes) -> None:
        self._bucket = bucket
        self._names = [f"list/{number:06d}" for number in range(sizes.small_objects)]
        self._walks: dict[int, tuple[str | None, list[str]]] = {}

    def prepare(self, connection: Connection) -> None:
        for name in self._names:
            expect(connection.request("PUT", f"/{self._bucket}/{name}", body=name.encode()), 200, 201)

    def step(self, worker: Worker) -> int:
        token, names = self._walks.pop(worker.index, (None, []))
        path = f"/v1/buckets/{self._bucket}/objects?prefix=list/&limit={LIST_PAGE}"
        answer = expect(worker.connection.request("GET", path + (f"&token={quote(token, safe='')}" if token else "")), 200)
        page: Any = answer.json()
        names += [entry["name"] for entry in page["objects"]]
        if names != self._names[: len(names)]:
            raise HttpFailure("wrong_names", path)
        if page["next_token"]:
            self._walks[worker.index] = (page["next_token"], names)
        elif len(names) != len(self._names):
            raise HttpFailure("short_listing", f"{len(names)} names of {len(self._names)}")
        return len(answer.body)


class MixedScenario:
    """A random mix of the others: what a training cluster does while data is still being added."""

    name = "mixed"
    SHARES = (("get", 5), ("range", 15), ("sample", 40), ("small", 30), ("list", 5), ("put", 5))

    def __init__(self, bucket: str, sizes: Sizes) -> None:
        self._parts: list[Scenario] = [SCENARIOS[name](bucket, sizes) for name, _ in self.SHARES]
        self._weights = [weight for _, weight in self.SHARES]

    def prepare(self, connection: Connection) -> None:
        for part in self._parts:
            part.prepare(connection)

    def step(self, worker: Worker) -> int:
        return worker.random.choices(self._parts, self._weights)[0].step(worker)

    def verify(self, connection: Connection) -> None:
        for part in self._parts:
            part.verify(connection)


SCENARIOS: dict[str, Callable[[str, Sizes], Scenario]] = {
    "put": PutScenario,
    "get": GetScenario,
    "range": RangeScenario,
    "sample": SampleScenario,
    "small": SmallScenario,
    "list": ListScenario,
    "mixed": MixedScenario,
}
