"""Writers that know what they may read: each has names of its own, and remembers what was acknowledged and what is open."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import httpx
import xxhash

TIMEOUT_S = 40.0
PAUSE_S = 0.1  # after a request that failed


@dataclass
class Known:
    """What may be read of a name: the last acknowledged content, or that of a write with an unknown outcome. None: nothing."""

    certain: str | None = None
    open: list[str | None] = field(default_factory=list)

    def acknowledged(self, content: str | None) -> None:
        """A write was acknowledged: all before it are history."""
        self.certain, self.open = content, []

    def unknown(self, content: str | None) -> None:
        """A write may or may not take effect, at some time."""
        self.open.append(content)

    def read(self, content: str | None) -> bool:
        """Whether that may be read. If it was open, it has taken effect."""
        if content == self.certain:
            return True
        if content not in self.open:
            return False
        self.certain = content
        self.open.remove(content)
        return True


class Writer(threading.Thread):
    """Puts, deletes and reads names of its own until `stopping` is set. `problems`: reads of what cannot have been there.

    `known`: of a writer that has gone before. What is answered after `lost` is set has not been said."""

    think_s = 0.0  # from one request to the next

    def __init__(
        self,
        url: str,
        bucket: str,
        number: int,
        seed: int,
        sizes: tuple[int, int],
        names: int = 40,
        *,
        known: dict[str, Known] | None = None,
        lost: threading.Event | None = None,
    ) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.stopping = threading.Event()
        self.known = known or {f"w{number}/{each}": Known() for each in range(names)}
        self._lost = lost or threading.Event()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.refusals: list[str] = []  # the last of them
        self.fails = False
        self._url = f"{url}/v1/objects/{bucket}"
        self._chance = random.Random(seed * 1000 + number)
        self._sizes = sizes

    def run(self) -> None:
        limits = httpx.Limits(max_keepalive_connections=4)
        with httpx.Client(timeout=TIMEOUT_S, limits=limits, params={"relay": "1"}, verify=False) as client:
            while not self.stopping.is_set():
                name = self._chance.choice(list(self.known))
                dice = self._chance.random()
                try:
                    if dice < 0.6:
                        self._try_put(client, name)
                    elif dice < 0.7:
                        self._try_delete(client, name)
                    else:
                        self._try_get(client, name)
                    time.sleep(PAUSE_S if self.fails else self.think_s)
                    self.fails = False
                except Exception as error:
                    self.problems.append(f"{name}: {type(error).__name__}: {error}")
                    return

    def _ask(self, client: httpx.Client, method: str, name: str, content: bytes | None = None) -> httpx.Response:
        answer = client.request(method, f"{self._url}/{name}", content=content)
        if self._lost.is_set():
            raise httpx.ReadError("answered by a machine that had no power any more")
        return answer

    def _try_put(self, client: httpx.Client, name: str) -> None:
        low, high = self._sizes
        body = self._chance.randbytes(int(low * (high / low) ** self._chance.random()))
        content = xxhash.xxh3_128_hexdigest(body)
        known = self.known[name]
        try:
            answer = self._ask(client, "PUT", name, body)
        except httpx.HTTPError:
            known.unknown(content)
            self._count_failure("put unknown")
            return
        if answer.status_code in (200, 201):
            known.acknowledged(content)
            self.counts["put"] += 1
            self.counts[f"copies {answer.json()['copies']}"] += 1
        else:
            known.unknown(content)
            self._refused(name, "put", answer)

    def _try_delete(self, client: httpx.Client, name: str) -> None:
        known = self.known[name]
        try:
            answer = self._ask(client, "DELETE", name)
        except httpx.HTTPError:
            known.unknown(None)
            self._count_failure("delete unknown")
            return
        if answer.status_code == 204:
            known.acknowledged(None)
            self.counts["delete"] += 1
        elif answer.status_code == 404:
            self._check(name, None, "delete")
        else:
            known.unknown(None)
            self._refused(name, "delete", answer)

    def _try_get(self, client: httpx.Client, name: str) -> None:
        try:
            answer = self._ask(client, "GET", name)
        except httpx.HTTPError:
            self._count_failure("get unknown")
            return
        if answer.status_code == 200:
            content = xxhash.xxh3_128_hexdigest(answer.content)
            stale = "X-DFC-Possibly-Stale" in answer.headers
            if answer.headers["ETag"] != f'"{content}"':
                self.problems.append(f"{name}: torn: the bytes are not those of ETag {answer.headers['ETag']}")
            if not stale:
                self._check(name, content, "get")
        elif answer.status_code == 404:
            self._check(name, None, "get")
        else:
            self._refused(name, "get", answer)

    def _check(self, name: str, content: str | None, how: str) -> None:
        self.counts[how] += 1
        known = self.known[name]
        before = f"certain {known.certain}, open {known.open}"
        if not known.read(content):
            self.problems.append(f"{name}: {how} found {content}, {before}")

    def _refused(self, name: str, how: str, answer: httpx.Response) -> None:
        self._count_failure(f"{how} {answer.status_code}")
        self.refusals = [*self.refusals[-9:], f"{how} {name} at {time.time():.3f}: {answer.status_code} {answer.text[:200]}"]
        if answer.status_code not in (500, 502, 503, 507) or is_corrupt(answer):
            self.problems.append(f"{name}: {how} was answered {answer.status_code}: {answer.text[:200]}")

    def _count_failure(self, what: str) -> None:
        self.counts[what] += 1
        self.fails = True


def is_corrupt(answer: httpx.Response) -> bool:
    """Whether an object was found damaged, which no kill, cut or loss of power may do."""
    return answer.status_code == 500 and '"object_corrupt"' in answer.text


def final_check(url: str, bucket: str, writers: Iterable[Writer], patience_s: float = 0.0) -> list[str]:
    """Read everything that the writers know of, when all is calm; the problems. Nodes that just start have `patience_s`."""
    problems = []
    with httpx.Client(timeout=TIMEOUT_S, params={"relay": "1"}, verify=False) as client:
        deadline_s = time.monotonic() + patience_s
        for writer in writers:
            for name, known in writer.known.items():
                answer = client.get(f"{url}/v1/objects/{bucket}/{name}")
                while answer.status_code == 503 and time.monotonic() < deadline_s:
                    time.sleep(PAUSE_S)
                    answer = client.get(f"{url}/v1/objects/{bucket}/{name}")
                content = xxhash.xxh3_128_hexdigest(answer.content) if answer.status_code == 200 else None
                if answer.status_code not in (200, 404):
                    problems.append(f"{name}: answered {answer.status_code} at the end: {answer.text[:200]}")
                elif not known.read(content):
                    problems.append(f"{name}: {content} at the end, certain {known.certain}, open {known.open}")
    return problems
