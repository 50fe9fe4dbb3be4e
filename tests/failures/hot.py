"""Clients that share hot names, and what each of their requests came to: histories, to be checked name by name."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import httpx
import xxhash
from simulation.histories import Kind, Operation, Outcome, is_linearizable

from failures.writers import is_corrupt

TIMEOUT_S: Final = 12.0
PAUSE_S: Final = 0.05  # after a request that failed
STALE: Final = "X-DFC-Possibly-Stale"
NEVER: Final = float("inf")  # when a request ended that may still take effect


@dataclass
class Game:
    """What all clients of a schedule share: of its names, so many are hot at a time, each for `hot_s`."""

    urls: list[str]
    bucket: str
    names: list[str]
    begun: float
    hot: int = 6
    hot_s: float = 4.0
    stopping: threading.Event = field(default_factory=threading.Event)
    seen: dict[str, str | None] = field(default_factory=dict)  # what conditional writes expect; may be old

    def a_name(self, chance: random.Random) -> str:
        """One that is hot now."""
        first = int((time.monotonic() - self.begun) / self.hot_s * self.hot)
        return self.names[(first + chance.randrange(self.hot)) % len(self.names)]


class Client(threading.Thread):
    """Reads and writes through any node until the game is over."""

    think_s = 0.0  # from one request to the next

    def __init__(self, game: Game, number: int, seed: str) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._game, self._number = game, number
        self._chance = random.Random(f"{seed} {number}")
        self.history: list[Operation] = []
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def run(self) -> None:
        with httpx.Client(timeout=TIMEOUT_S, params={"relay": "1"}, verify=False) as http:
            while not self._game.stopping.is_set():
                try:
                    is_done = self._act(http, self._game.a_name(self._chance))
                    time.sleep(self.think_s if is_done else PAUSE_S)
                except Exception as error:
                    self.problems.append(f"client {self._number}: {type(error).__name__}: {error}")
                    return

    def _act(self, http: httpx.Client, name: str) -> bool:
        """One request; whether it had a definite outcome."""
        dice = self._chance.random()
        if dice < 0.35:
            return self.get(http, name, self._chance.choice(self._game.urls))
        if dice < 0.65:
            return self._write(http, "put", name)
        if dice < 0.90 and name in self._game.seen:
            return self._write(http, "swap", name)
        return self._write(http, "delete", name)

    def get(self, http: httpx.Client, name: str, url: str) -> bool:
        """Read a name at a node, and remember it."""
        began = time.monotonic()
        try:
            answer = http.get(f"{url}/v1/objects/{self._game.bucket}/{name}")
        except httpx.HTTPError:
            self.counts["get unknown"] += 1
            return False
        if answer.status_code not in (200, 404):
            return self._refused("get", name, answer)
        if STALE in answer.headers:
            self.counts[f"get {answer.status_code} possibly stale"] += 1
            if answer.status_code == 404:
                self.problems.append(f"{name}: 404, possibly stale")
            return True
        value = xxhash.xxh3_128_hexdigest(answer.content) if answer.status_code == 200 else None
        if value is not None and answer.headers["ETag"] != f'"{value}"':
            self.problems.append(f"{name}: torn: the bytes are not those of ETag {answer.headers['ETag']}")
        if value is None and answer.json()["error"]["code"] != "object_not_found":
            self.problems.append(f"{name}: {answer.text[:200]}")
        self._done("get", name, value, None, began, "ok")
        self._game.seen[name] = value
        return True

    def _write(self, http: httpx.Client, kind: Kind, name: str) -> bool:
        expected = self._game.seen.get(name) if kind == "swap" else None
        headers = {} if kind != "swap" else {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
        body = None if kind == "delete" else self._chance.randbytes(self._chance.choice((16, 500, 5_000, 90_000)))
        value = None if body is None else xxhash.xxh3_128_hexdigest(body)
        url, method = self._chance.choice(self._game.urls), "DELETE" if kind == "delete" else "PUT"
        began = time.monotonic()
        try:
            answer = http.request(method, f"{url}/v1/objects/{self._game.bucket}/{name}", content=body, headers=headers)
        except httpx.HTTPError:
            self.counts[f"{kind} unknown"] += 1
            self._done(kind, name, value, expected, began, "unknown")
            return False
        outcomes: dict[int, Outcome] = {200: "ok", 201: "ok", 204: "ok"}
        outcomes |= {"put": {}, "delete": {404: "absent"}, "swap": {412: "failed"}}[kind]  # type: ignore[arg-type,dict-item]
        outcome = outcomes.get(answer.status_code, "unknown")
        self._done(kind, name, value, expected, began, outcome)
        if outcome == "unknown":
            return self._refused(kind, name, answer)
        if outcome == "ok":
            self._game.seen[name] = value
        return True

    def _done(self, kind: Kind, name: str, value: str | None, expected: str | None, began: float, outcome: Outcome) -> None:
        ended = NEVER if outcome == "unknown" else time.monotonic()
        self.history.append(Operation(kind, name, value, expected, began, ended, outcome))
        if outcome != "unknown":
            self.counts[f"{kind} {outcome}"] += 1

    def _refused(self, kind: str, name: str, answer: httpx.Response) -> bool:
        self.counts[f"{kind} {answer.status_code}"] += 1
        # 408: a connection between nodes was silent for so long that its other end, cut off, gave it up.
        if answer.status_code not in (408, 500, 502, 503) or is_corrupt(answer):
            self.problems.append(f"{name}: {kind} was answered {answer.status_code}: {answer.text[:200]}")
        return False


def judge(histories: Iterable[list[Operation]]) -> tuple[list[str], Counter[str]]:
    """Check each name's history; what is wrong, and counts."""
    by_name: dict[str, list[Operation]] = {}
    for history in histories:
        for operation in history:
            by_name.setdefault(operation.name, []).append(operation)
    problems: list[str] = []
    counts: Counter[str] = Counter(names=len(by_name), operations=sum(map(len, by_name.values())))
    with ProcessPoolExecutor(2) as processes:
        for name, found in zip(by_name, processes.map(is_linearizable, by_name.values()), strict=True):
            counts["names undecided"] += found is None
            if found is None:
                problems.append(f"{name}: not found out whether its {len(by_name[name])} operations are linearizable")
            elif not found:
                problems.append(f"{name} is not linearizable: {sorted(by_name[name], key=lambda each: each.began)}")
    return problems, counts
