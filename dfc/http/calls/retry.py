"""How often to try and how long to wait between tries, and how a caller ends work that other threads do for it."""

from __future__ import annotations

import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dfc.errors import DfcError
from dfc.http.calls.problems import is_worth_retrying, retry_after_s

T = TypeVar("T")


class Cancelled(DfcError):
    """The caller ended the operation; what a download has stored so far is kept for resuming."""

    status = 499
    code = "cancelled"

    def __init__(self, message: str = "cancelled") -> None:
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff: half of each delay is random, so that many clients do not come back in step.

    The default waits about 12 s in all, longer than a cluster needs to serve again after it lost a process.
    """

    retries: int = 7
    first_delay_s: float = 0.25
    delay_max_s: float = 4.0
    retry_after_max_s: float = 30.0
    random: random.Random = field(default_factory=random.Random, compare=False)

    def delay_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Seconds before try `attempt` + 2; never less than the node asked for, within the bound."""
        delay: float = min(self.first_delay_s * 2**attempt, self.delay_max_s) * (0.5 + 0.5 * self.random.random())
        return max(delay, min(retry_after_s or 0.0, self.retry_after_max_s))


class Retries:
    """Tries in vain, counted. `worth` says which errors may pass."""

    def __init__(self, policy: RetryPolicy, worth: Callable[[DfcError], bool] = is_worth_retrying) -> None:
        self.policy = policy
        self.number = 0
        self._worth = worth

    def delay_s(self, problem: DfcError, *, useful: bool = False) -> float | None:
        """Seconds to wait before another try, None when there is to be none. After a try that was `useful`, part of the work
        being done, there may be as many again as at first."""
        if useful:
            self.number = 0
        if self.number >= self.policy.retries or not self._worth(problem):
            return None
        self.number += 1
        return self.policy.delay_s(self.number - 1, retry_after_s(problem))

    def again(self, problem: DfcError, wait: Callable[[float], None], *, useful: bool = False) -> bool:
        """Wait so long, or say that there is to be no other try."""
        delay_s = self.delay_s(problem, useful=useful)
        if delay_s is not None:
            wait(delay_s)
        return delay_s is not None


def retried(
    attempt: Callable[[], T],
    policy: RetryPolicy,
    wait: Callable[[float], None],
    worth: Callable[[DfcError], bool] = is_worth_retrying,
    check: Callable[[], None] = lambda: None,
) -> T:
    """What the attempt gives, in a thread; while it fails with what may pass, again after a `wait`.

    `worth` is asked only while there are tries left; `check` raises before a try, or in the place of its error, when the caller
    has given up.
    """
    retries = Retries(policy, worth)
    while True:
        check()
        try:
            return attempt()
        except DfcError as problem:
            check()
            delay_s = retries.delay_s(problem)
            if delay_s is None:
                raise  # here: its traceback would hold a function that was given it, and so itself and all that it names
        wait(delay_s)


class Cancellation:
    """Ends every transfer that runs under it, from any thread, by shutting their sockets down."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._actions: list[Callable[[], None]] = []

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def cancel(self) -> None:
        """What runs raises `Cancelled` soon; so does what would start later."""
        if sys.is_finalizing():
            return  # all other threads stand still, perhaps one with the lock; sockets end with the process
        self._event.set()
        with self._lock:
            for sock in self._sockets:
                _shut_down(sock)
            actions = list(self._actions)
        for action in actions:
            action()

    def check(self) -> None:
        if self._event.is_set():
            raise Cancelled

    def wait(self, seconds: float) -> None:
        """Sleep, unless cancelled."""
        if self._event.wait(seconds):
            raise Cancelled

    def track(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.add(sock)
        if self._event.is_set():
            _shut_down(sock)

    def add(self, action: Callable[[], None]) -> None:
        """Have this done when it is cancelled, at once if it is already: for what is no socket."""
        with self._lock:
            self._actions.append(action)
        if self._event.is_set():
            action()

    def remove(self, action: Callable[[], None]) -> None:
        with self._lock:
            if action in self._actions:
                self._actions.remove(action)

    def untrack(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(sock)


def _shut_down(sock: socket.socket) -> None:
    try:
        # The method of the base class: that of a TLS socket would pull its state away under the reading thread.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass  # it was not connected any more


_CURRENT: Final[ContextVar[Cancellation | None]] = ContextVar("dfc_cancellation", default=None)


@contextmanager
def cancelled_by(cancellation: Cancellation) -> Iterator[None]:
    """Transfers that begin inside, in this thread, end with this cancellation instead of the client's own."""
    token = _CURRENT.set(cancellation)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_cancellation(default: Cancellation) -> Cancellation:
    return _CURRENT.get() or default
