"""Several small pictures in one answer: a tar with a JPEG for each, or the error there is instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import NamedTuple

from dfc.errors import DfcError, MemberNotFound, NotAPicture, Unavailable
from dfc.limits import THUMBNAILS_AHEAD
from dfc.storage.rows import RowChanged
from dfc.tar.writer import END_OF_ARCHIVE, member_header, padding
from dfc.target.thumbnails.making import PictureKey, Thumbnails


class WantedPicture(NamedTuple):
    """The small picture of the sample with this ordinal. `read` gives the bytes of the whole one."""

    number: int
    key: PictureKey
    read: Callable[[], Awaitable[bytes]]


class NoPicture(NamedTuple):
    """Why the sample with this ordinal has none."""

    number: int
    error: MemberNotFound


async def pictures_tar(
    thumbnails: Thumbnails, wanted: Sequence[WantedPicture | NoPicture], error_json: Callable[[DfcError], bytes]
) -> AsyncGenerator[bytes]:
    """Yield a tar with a member for each that is wanted, in this order: `NUMBER.jpg`, or `NUMBER.error.json` with what
    `error_json` makes of the error. All that is at hand comes in one piece. Of the others a few are waited for at a time, so
    that no page keeps the pictures of another from being made. Raises what `Thumbnails.get` raises, but for NotAPicture."""
    tasks: dict[int, asyncio.Task[bytes]] = {}
    pieces: list[bytes] = []
    ahead = 0
    try:
        for at, each in enumerate(wanted):
            while ahead < len(wanted) and len(tasks) < THUMBNAILS_AHEAD:
                if (begun := _begun(thumbnails, wanted[ahead])) is not None:
                    tasks[ahead] = begun
                ahead += 1
            task = tasks.get(at)
            if task is not None and not task.done() and pieces:
                yield b"".join(pieces)
                pieces = []
            try:
                name, content = f"{each.number:06d}.jpg", await _content(thumbnails, each, task)
            except (NotAPicture, MemberNotFound) as error:
                name, content = f"{each.number:06d}.error.json", error_json(error)
            pieces += (member_header(name, len(content)), content, padding(len(content)))
            tasks.pop(at, None)
        yield b"".join([*pieces, END_OF_ARCHIVE])
    finally:
        for task in tasks.values():
            task.cancel()


def _begun(thumbnails: Thumbnails, each: WantedPicture | NoPicture) -> asyncio.Task[bytes] | None:
    """Begin to wait for a picture that is not at hand."""
    if isinstance(each, NoPicture) or thumbnails.is_at_hand(each.key):
        return None
    task = asyncio.create_task(thumbnails.get(each.key, each.read))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits for it any more
    return task


async def _content(thumbnails: Thumbnails, each: WantedPicture | NoPicture, task: asyncio.Task[bytes] | None) -> bytes:
    """A picture, for which `task` waits if it was not at hand."""
    if isinstance(each, NoPicture):
        raise each.error
    try:
        return await (thumbnails.get(each.key, each.read) if task is None else task)
    except RowChanged as error:
        raise Unavailable(f"{error.row.name!r} was replaced meanwhile; try again") from None
