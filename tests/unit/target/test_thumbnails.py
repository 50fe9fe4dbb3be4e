"""Small pictures: made once however many want them, kept within bounds, and not made for those who have left."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tarfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness import until
from PIL import Image

from dfc.errors import DfcError, MemberNotFound, NotAPicture, Unavailable
from dfc.jobs.sandbox.parent import Sandbox
from dfc.limits import THUMBNAIL_INPUT_BYTES_MAX, THUMBNAIL_PROCESSES, THUMBNAIL_QUEUE_MAX, THUMBNAILS_AHEAD
from dfc.storage.rows import ObjectRow, RowChanged
from dfc.target.thumbnails import KeptPictures, NoPicture, PictureKey, PictureProcesses, Thumbnails, WantedPicture, pictures_tar


def key(number: int = 0, size: int = 10) -> PictureKey:
    return PictureKey("blob", number, size, 96)


def picture(side: int = 300) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (side, side), (9, 200, 9)).save(content, "PNG")
    return content.getvalue()


class Slow(PictureProcesses):
    """Answers with the bytes that it got once `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.asked: list[bytes] = []

    def make(self, data: bytes, pixels: int) -> bytes | str:
        self.asked.append(data)
        assert self.go.wait(20)
        return "no picture" if data == b"bad" else data


async def content(data: bytes = b"data") -> bytes:
    return data


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
async def thumbnails(slow: Slow) -> AsyncIterator[Thumbnails]:
    made = Thumbnails(slow)
    yield made
    await made.close()


async def test_it_is_made_once_for_all_and_kept(slow: Slow, thumbnails: Thumbnails) -> None:
    asking = [asyncio.create_task(thumbnails.get(key(), content)) for _ in range(5)]
    await until(lambda: slow.asked)
    asking.pop().cancel()  # one who leaves takes nothing away from the others
    slow.go.set()
    assert await asyncio.gather(*asking) == [b"data"] * 4
    assert await thumbnails.get(key(), content) == b"data"
    assert len(slow.asked) == 1


async def test_why_there_is_none_is_kept_as_well_and_trouble_is_not(slow: Slow, thumbnails: Thumbnails) -> None:
    slow.go.set()
    for _ in range(2):
        with pytest.raises(NotAPicture, match="no picture"):
            await thumbnails.get(key(), lambda: content(b"bad"))
    assert len(slow.asked) == 1

    async def fails() -> bytes:
        raise Unavailable("the disk is busy")

    with pytest.raises(Unavailable, match="the disk is busy"):
        await thumbnails.get(key(1), fails)
    assert await thumbnails.get(key(1), content) == b"data"
    with pytest.raises(NotAPicture, match="too large"):
        await thumbnails.get(key(2, THUMBNAIL_INPUT_BYTES_MAX + 1), fails)


async def test_pictures_of_a_page_that_was_left_are_not_made(slow: Slow, thumbnails: Thumbnails) -> None:
    asking = [asyncio.create_task(thumbnails.get(key(number), content)) for number in range(10)]
    await until(lambda: len(slow.asked) == THUMBNAIL_PROCESSES)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    last = asyncio.create_task(thumbnails.get(key(5), lambda: content(b"new")))
    slow.go.set()
    assert await last == b"new"
    assert slow.asked == [b"data"] * THUMBNAIL_PROCESSES + [b"new"]


async def test_a_full_queue_is_said(slow: Slow, thumbnails: Thumbnails) -> None:
    asking = [asyncio.create_task(thumbnails.get(key(number), content)) for number in range(THUMBNAIL_QUEUE_MAX)]
    await until(lambda: slow.asked)
    with pytest.raises(Unavailable, match="too busy"):
        await thumbnails.get(key(THUMBNAIL_QUEUE_MAX), content)
    slow.go.set()
    assert set(await asyncio.gather(*asking)) == {b"data"}


def said(error: DfcError) -> bytes:
    return error.message.encode()


def wanted(*numbers: int, read=content) -> list[WantedPicture | NoPicture]:
    return [WantedPicture(number, key(number), read) for number in numbers]


def names(tar: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return archive.getnames()


async def test_several_come_in_order_and_those_at_hand_in_one_piece(slow: Slow, thumbnails: Thumbnails) -> None:
    slow.go.set()
    await thumbnails.get(key(1), content)
    asked = [*wanted(1), NoPicture(7, MemberNotFound("no")), *wanted(4, 3)]
    first, *others = [each async for each in pictures_tar(thumbnails, asked, said)]
    assert first.startswith(b"000001.jpg")
    assert b"000004.jpg" not in first
    assert names(first + b"".join(others)) == ["000001.jpg", "000007.error.json", "000004.jpg", "000003.jpg"]
    again = [each async for each in pictures_tar(thumbnails, wanted(3, 1, 4), said)]
    assert [names(each) for each in again] == [["000003.jpg", "000001.jpg", "000004.jpg"]]
    assert len(slow.asked) == 3


async def test_several_wait_a_few_at_a_time_and_not_for_those_who_have_left(slow: Slow, thumbnails: Thumbnails) -> None:
    read: list[int] = []

    def reading(number: int):
        async def noted() -> bytes:
            read.append(number)
            return b"data"

        return noted

    pieces = pictures_tar(thumbnails, [each for at in range(50) for each in wanted(at, read=reading(at))], said)
    asking = asyncio.create_task(anext(pieces))
    await until(lambda: len(slow.asked) == THUMBNAIL_PROCESSES)
    assert len(thumbnails._making) == THUMBNAILS_AHEAD
    asking.cancel()
    await asyncio.wait([asking])
    await pieces.aclose()
    slow.go.set()
    assert await thumbnails.get(key(60), content) == b"data"
    await until(lambda: not thumbnails._making)
    assert read == [0, 1]


async def test_trouble_ends_the_answer_with_several(thumbnails: Thumbnails) -> None:
    async def fails() -> bytes:
        raise Unavailable("the disk is busy")

    with pytest.raises(Unavailable, match="the disk is busy"):
        [each async for each in pictures_tar(thumbnails, wanted(1, 2, 3, read=fails), said)]
    await thumbnails.close()
    with pytest.raises(Unavailable):
        thumbnails.check()


async def test_a_shard_that_is_replaced_meanwhile_is_to_be_asked_for_again(thumbnails: Thumbnails) -> None:
    """Both for a picture that is waited for ahead, and for one that was at hand when the answer began."""

    async def fails() -> bytes:
        raise RowChanged(cast(ObjectRow, SimpleNamespace(name="s.tar", version="2")))

    with pytest.raises(Unavailable, match=r"'s\.tar' was replaced meanwhile; try again"):
        [each async for each in pictures_tar(thumbnails, wanted(1, 2, read=fails), said)]
    forgets = Thumbnails(Slow())
    forgets.is_at_hand = lambda _key: True  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="try again"):
        [each async for each in pictures_tar(forgets, wanted(1, read=fails), said)]
    await forgets.close()


async def test_who_waits_when_the_node_stops_is_told(slow: Slow, thumbnails: Thumbnails) -> None:
    asking = [asyncio.create_task(thumbnails.get(key(number), content)) for number in range(4)]
    await until(lambda: slow.asked)
    slow.go.set()
    await thumbnails.close()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(each, Unavailable) or each == b"data" for each in found)
    assert any(isinstance(each, Unavailable) for each in found)
    with pytest.raises(Unavailable):
        await thumbnails.get(key(9), content)


def test_what_is_kept_is_bounded() -> None:
    kept = KeptPictures(10_000)
    for number in range(100):
        kept.put(key(number), b"x" * 500)
        assert kept.get(key(0)) is not None, "what is used stays"
    assert sum(kept.get(key(number)) is not None for number in range(100)) == 10
    kept.put(key(0), b"y" * 500)
    kept.put(key(0), b"z" * 500)
    assert kept.get(key(0)) == b"z" * 500
    assert sum(kept.get(key(number)) is not None for number in range(100)) == 10


def children() -> list[int]:
    """Processes for pictures that this one has started, directly."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and b"dfc.jobs.sandbox.child" in command:
            found.append(int(path.parent.name))
    return found


def test_a_process_makes_many_and_ends_when_it_is_idle() -> None:
    processes = PictureProcesses()
    data = picture()
    for pixels in (96, 192, 384):
        made = processes.make(data, pixels)
        assert isinstance(made, bytes)
        assert Image.open(io.BytesIO(made)).size == (min(300, pixels),) * 2
        (child,) = children()
    assert os.getpriority(os.PRIO_PROCESS, child) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
    assert processes.make(b"no picture", 96) == "not a picture that can be decoded (its format is not known)"
    assert children() == [child], "one that is refused costs no process"
    assert processes.end_idle(60.0), "it has not been idle for so long"
    assert not processes.end_idle(0.0)
    assert children() == []
    processes.close()
    with pytest.raises(Unavailable):
        processes.make(data, 96)


def test_a_picture_that_kills_its_process_is_refused_and_the_next_one_is_made() -> None:
    processes = PictureProcesses()
    assert isinstance(processes.make(picture(), 96), bytes)
    (child,) = children()
    os.kill(child, 9)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # a busy machine takes its time, and pictures are made meanwhile
    refused = processes.make(picture(), 96)
    assert str(refused).startswith("the picture cannot be made small: its process ended")
    assert isinstance(processes.make(picture(), 96), bytes)
    processes.close()
    assert children() == []


def test_one_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfc.target.thumbnails.THUMBNAIL_S", 0.001)
    processes = PictureProcesses()
    assert processes.make(picture(3000), 96) == "the picture cannot be made small: timed out after 0.001 s"
    assert children() == []
    processes.close()


def test_closing_stops_a_picture_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is stopped before it gets the picture, so that this is not ready before it is closed."""
    processes = PictureProcesses()
    assert isinstance(processes.make(picture(), 96), bytes)
    (child,) = children()
    asked, found = threading.Event(), []
    transfer = Sandbox._transfer

    def stopped(this: Sandbox, *given: Any) -> bytes:
        os.killpg(child, signal.SIGSTOP)
        asked.set()
        return transfer(this, *given)

    monkeypatch.setattr(Sandbox, "_transfer", stopped)
    thread = threading.Thread(target=lambda: found.append(processes.make(picture(), 384)))
    thread.start()
    assert asked.wait(60)
    processes.close()
    thread.join(30)
    assert not thread.is_alive()
    assert len(found) == 1
    assert isinstance(found[0], str)
    assert children() == []
