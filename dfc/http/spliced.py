"""Answers of other nodes with large bodies: sent on with splice, and gone on with at another node if theirs breaks off."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from dfc.errors import DfcError, LengthMismatch
from dfc.http.answers import AnswerCut, BulkAnswer
from dfc.http.calls.peer import PeerConnection, PeerGone, PeerResponse
from dfc.http.exchange import Exchange
from dfc.http.transfer import Splice, duplicate

TURNS_MAX: Final = 16  # so often an answer is gone on with elsewhere
_CONTENT_RANGE: Final = re.compile(rb"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")


class Rest(NamedTuple):
    """What is left of an answer: bytes `first` to `last` of an object of `size` with a strong `etag`. The node at `url` broke
    off."""

    url: str
    etag: bytes
    first: int
    last: int
    size: int

    def is_continued_by(self, response: PeerResponse) -> bool:
        """Whether the body of an answer is exactly that."""
        return (
            response.status == 206
            and response.header(b"etag") == self.etag
            and response.header(b"content-range") == b"bytes %d-%d/%d" % self[2:]
            and response.header(b"content-length") == b"%d" % (self.last + 1 - self.first)
        )


def rest_of(response: PeerResponse, url: str, length: int, sent: int) -> Rest | None:
    """What is left of an answer of which so many bytes were sent. None if that cannot be asked for: it is not one range of an
    object, or has no strong ETag."""
    etag = response.header(b"etag")
    if etag is None or not etag.startswith(b'"') or response.header(b"accept-ranges") != b"bytes":
        return None
    if response.status == 200:
        return Rest(url, etag, sent, length - 1, length)
    found = _CONTENT_RANGE.fullmatch(response.header(b"content-range") or b"")
    if response.status != 206 or found is None:
        return None
    first, last, size = map(int, found.groups())
    return Rest(url, etag, first + sent, last, size)


GoOn = Callable[[Rest], Awaitable[tuple[PeerConnection, PeerResponse]]]
"""Asks for the rest of an answer. Unavailable."""


class SpliceAnswer(BulkAnswer):
    """An answer with a large body of known length from another node, sent with splice. Owns the node's connection.

    `go_on`: where the rest comes from if the node breaks off; None: the answer is cut off then.
    """

    __slots__ = ("_connection", "_done", "_finish", "_response", "_reusable", "_turns", "go_on")

    def __init__(
        self,
        finish: Callable[[PeerConnection, bool], None],
        response: PeerResponse,
        connection: PeerConnection,
        length: int,
        headers: list[tuple[str, str]],
        reusable: bool,
    ) -> None:
        super().__init__(response.status, b"", headers, content_length=length)
        self._is_begun = False
        self._finish, self._connection, self._reusable = finish, connection, reusable
        self._response = response
        self._done, self._turns = False, 0
        self.go_on: GoOn | None = None

    async def _send(self, exchange: Exchange) -> None:
        head, begun = self._head(exchange, self._length_line()), self._response.begun
        await exchange.write_buffer_empty()
        with duplicate(exchange.socket()) as sink:
            while True:
                left = self.content_length - self.sent_bytes - len(begun)
                transfer = Splice(self._connection.socket, sink, head + begun, left)
                self._is_begun = True
                try:
                    await exchange.drive_answer(transfer, exchange.bulk.threads)
                    break
                except LengthMismatch as error:
                    cut = AnswerCut(f"the node at {self._connection.url} broke off its answer")
                    cut.__cause__ = error
                finally:
                    self.sent_bytes += max(0, transfer.moved - len(head))
                    head = head[transfer.moved :]
                    transfer.close()
                begun = await self._continued(cut)
        self._done = True

    async def _continued(self, cut: AnswerCut) -> bytes:
        """Go on at another node; returns what has come of its body. AnswerCut if there is none. If this is cancelled, the
        connection that broke off is still this answer's, and is closed at its release."""
        self._turns += 1
        rest = rest_of(self._response, self._connection.url, self.content_length, self.sent_bytes)
        if rest is None or self.go_on is None or self._turns > TURNS_MAX:
            raise cut
        try:
            connection, response = await self.go_on(rest)
        except (DfcError, PeerGone) as error:
            raise cut from error
        self._connection.cut()
        self._connection, self._reusable = connection, response.header(b"connection") != b"close"
        return response.begun

    async def _release(self) -> None:
        if self._done:
            self._finish(self._connection, self._reusable)
        else:
            self._connection.cut()
