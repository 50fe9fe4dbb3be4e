"""Virtual time, processes as generators, and a network that loses, delays and reorders messages, cuts links and crashes nodes.

A process yields what it waits for and is sent the result: `Sleep`, `Call` (None when no answer came in time) or `All`, several
calls at once. A seed gives the same run each time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

CALL_S = 0.8
QUICK_S = (0.001, 0.01)
SLOW_S = (0.01, 0.6)
SLOW_SHARE = 0.03


class Sleep(NamedTuple):
    seconds: float


def _stays() -> bool:
    return False


class Call(NamedTuple):
    """`has_left`: whether the caller has closed the connection although it might still wait, as its own caller has."""

    to: str
    method: str
    arguments: tuple[Any, ...] = ()
    timeout_s: float = CALL_S
    has_left: Callable[[], bool] = _stays


class All(NamedTuple):
    calls: Mapping[Any, Call]


Process = Generator[Sleep | Call | All, Any, Any]


class Actor:
    """Something with a name that can be called, crashed and paused. A crash ends its processes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.paused_until = 0.0
        self.life = 0  # counts crashes
        world.actors[name] = self

    def boot(self) -> None:
        """Begin anew, with what is durable."""

    def crash(self, away_s: float) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        self.life += 1
        life = self.life

        def back() -> None:
            if self.life == life:
                self.is_dead = False
                self.boot()

        self.world.after(away_s, back)


@dataclass
class Slowness:
    """Delays of some methods: with `share`, up to `seconds`."""

    share: float
    seconds: float


class World:
    """One run."""

    notices_given_up = True
    """Whether who goes on after a pause asks the kernel which callers have left, and does nothing for them. Only where
    `has_relays`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.actors: dict[str, Actor] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.loss = 0.0
        self.slow: dict[str, Slowness] = {}
        self.slow_rows = False
        self.has_relays = False
        self.tombstones_kept_s = inf
        self.held: dict[tuple[str, str], float] = {}
        """Messages by (sender, method) that arrive no earlier than at a time; for directed schedules."""
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), action))

    def run_until(self, time: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= time:
            self.now, _, action = heapq.heappop(queue)
            self.events += 1
            action()
        self.now = time

    # --- processes

    def spawn(self, owner: Actor, process: Process, done: Callable[[Any], None] | None = None) -> None:
        life = owner.life

        def resume(value: Any = None) -> None:
            if owner.life != life or owner.is_dead:
                return
            if owner.paused_until > self.now:
                self.after(owner.paused_until - self.now + 1e-4, lambda: resume(value))
                return
            try:
                wanted = process.send(value)
            except StopIteration as end:
                if done is not None:
                    done(end.value)
                return
            if isinstance(wanted, Sleep):
                self.after(wanted.seconds, resume)
            elif isinstance(wanted, Call):
                self.call(owner, wanted, resume)
            else:
                self._call_all(owner, wanted, resume)

        self.after(0, resume)

    def _call_all(self, owner: Actor, wanted: All, resume: Callable[[Any], None]) -> None:
        results: dict[Any, Any] = {}
        if not wanted.calls:
            self.after(0, lambda: resume(results))
            return

        def collector(key: Any) -> Callable[[Any], None]:
            def collect(result: Any) -> None:
                results[key] = result
                if len(results) == len(wanted.calls):
                    resume(results)

            return collect

        for key, call in wanted.calls.items():
            self.call(owner, call, collector(key))

    # --- messages

    def _passes(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self.cuts and self.random.random() >= self.loss

    def _delay(self, method: str) -> float:
        slow = self.slow.get(method)
        if slow is not None and self.random.random() < slow.share:
            return self.random.uniform(0, slow.seconds)
        return self.random.uniform(*(SLOW_S if self.random.random() < SLOW_SHARE else QUICK_S))

    def call(self, sender: Actor, call: Call, done: Callable[[Any], None]) -> None:
        """`done` gets the answer, or None: lost, late, or nobody there. The receiver may have acted all the same."""
        finished = False

        def finish(result: Any) -> None:
            nonlocal finished
            if not finished:
                finished = True
                done(result)

        self.after(call.timeout_s, lambda: finish(None))
        if not self._passes(sender.name, call.to):
            return

        was_paused = False

        def has_left() -> bool:
            """Whether the caller has closed the connection, for one that has stood still and therefore asks."""
            return self.notices_given_up and self.has_relays and was_paused and (finished or call.has_left())

        def arrive() -> None:
            nonlocal was_paused
            receiver = self.actors[call.to]
            if receiver.is_dead or has_left():
                return
            if receiver.paused_until > self.now:
                was_paused = True
                self.after(receiver.paused_until - self.now + 1e-4, arrive)
                return

            def reply(result: Any) -> None:
                if self._passes(call.to, sender.name):
                    self.after(self._delay(call.method), lambda: finish(result))

            more = (lambda: finished or call.has_left(),) if self.has_relays and call.method == "put" else ()
            self.spawn(receiver, _answer(getattr(receiver, f"on_{call.method}"), (sender.name, *call.arguments, *more)), reply)

        held_s = self.held.get((sender.name, call.method), 0.0) - self.now
        self.after(max(self._delay(call.method), held_s), arrive)

    def tell(self, sender: Actor, call: Call) -> None:
        """Like `call`, without an interest in the answer."""
        self.call(sender, call, lambda _: None)


def _answer(handler: Callable[..., Any], arguments: Sequence[Any]) -> Process:
    """What an actor answers to a message: its handler says it at once, or is a process that waits before."""
    answer = handler(*arguments)
    return (yield from answer) if isinstance(answer, Generator) else answer
