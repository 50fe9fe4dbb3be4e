"""What may be in the way of the outputs of a job at its end."""

from __future__ import annotations

import asyncio

from inprocess import content_of, stage, until

from dfc.errors import Unavailable
from dfc.proxy.jobs import context as running_staged


async def test_overwriting_leaves_others_with_a_warning(cluster):
    for number in (1, 7, 8):
        await cluster.ask("PUT", f"/out/out-{number:04}", b"old")
    ended = await cluster.until((await cluster.submit(overwrite=True))["id"])
    assert ended["warnings"] == [
        "existing objects that match the output pattern were left unchanged: 'out-0007' and 1 more",
    ]  # fmt: skip
    assert await cluster.ask("GET", "/out/out-0001") == (200, content_of("out-0001", 10).decode())
    assert await cluster.ask("GET", "/out/out-0007") == (200, "old")


async def test_an_object_that_appears_meanwhile(cluster):
    gate, job = await cluster.submit_held()
    await cluster.ask("PUT", "/out/out-0002", b"mine")
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "output_exists")
    assert await cluster.ask("GET", "/out/out-0002") == (200, "mine")
    assert await cluster.names() == ["out-0002"]


async def test_a_bucket_that_is_deleted_meanwhile(cluster):
    gate, job = await cluster.submit_held()
    assert (await cluster.ask("DELETE", "/v1/buckets/out"))[0] == 204
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert ended["state"] == "failed", ended
    await cluster.until_nothing_is_staged()
    assert (await cluster.ask("GET", "/v1/buckets/out"))[0] == 404, "no task has made it anew"


async def test_staged_objects_that_are_not_what_was_written(cluster):
    gate, job = await cluster.submit_held(2)

    async def has_two() -> bool:
        return sum((await cluster.staged()).values()) == 2

    await until(has_two)
    await stage(cluster.url, job["id"], "out", "out-0001", b"other")
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "output_lost")
    assert await cluster.names() == []


def publishing(cluster, monkeypatch, before=None, after=None):
    """Have something done before outputs are published, or after that."""
    staged = cluster.proxy.jobs._context.staged
    real = staged.publish

    async def publish(job_id: str, *more: object) -> bool:
        if before:
            await before(job_id)
        done = await real(job_id, *more)
        if after:
            await after(job_id)
        return done

    monkeypatch.setattr(staged, "publish", publish)


async def test_a_job_whose_outputs_were_lost_before_others_had_them_fails_with_their_names(cluster, monkeypatch):
    """As when the disk that had them was removed: every target says that nothing of the job waits."""

    async def meanwhile(_: str) -> None:
        for target in cluster.targets:
            for disk in target.local.in_order():
                for bucket_id, name, version, _ in disk.copies.rows()[0]:
                    if name in ("out-0000", "out-0002"):
                        disk.copies.remove_excess([(bucket_id, name, version)])  # without a trace

    publishing(cluster, monkeypatch, after=meanwhile)
    ended = await cluster.until((await cluster.submit())["id"])
    assert ended["state"] == "failed", ended
    assert ended["error"]["code"] == "output_lost"
    assert ended["error"]["message"].endswith(": 'out-0000', 'out-0002'")
    assert await cluster.names() == ["out-0001"]
    await cluster.until_nothing_is_staged()


async def test_outputs_that_were_replaced_or_deleted_meanwhile_are_not_lost(cluster, monkeypatch):
    async def meanwhile(_: str) -> None:
        await cluster.ask("DELETE", "/out/out-0000")
        await cluster.ask("PUT", "/out/out-0002", b"new")

    publishing(cluster, monkeypatch, after=meanwhile)
    assert (await cluster.until((await cluster.submit())["id"]))["state"] == "succeeded"
    assert await cluster.names() == ["out-0001", "out-0002"]


async def test_an_older_object_in_the_place_of_an_output_is_a_loss(cluster, monkeypatch):
    await cluster.ask("PUT", "/out/out-0001", b"old")

    async def meanwhile(job_id: str) -> None:
        for target in cluster.targets:
            for disk in target.local.in_order():
                for row in await asyncio.to_thread(disk.staging.prepare, job_id):
                    if row.name == "out-0001":
                        disk.staging.discard(job_id)

    publishing(cluster, monkeypatch, before=meanwhile)
    ended = await cluster.until((await cluster.submit(overwrite=True))["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "output_lost")
    assert "'out-0001'" in ended["error"]["message"]
    assert await cluster.ask("GET", "/out/out-0001") == (200, "old")


async def test_a_job_waits_for_a_target_that_cannot_say_whether_an_output_is_there(cluster, monkeypatch):
    """It has published all that it had staged, and has no lease any more, or is gone, until it is back."""
    monkeypatch.setattr(running_staged, "RETRY_FIRST_S", 0.01)
    control = cluster.proxy.jobs._context.cluster.control
    call, refused = control.call, list[str]()

    async def refuse(method: str, url: str, *more: object, **named: object) -> object:
        if url.endswith("/missing") and len(refused) < 3:
            refused.append(url)
            raise Unavailable("no lease")
        return await call(method, url, *more, **named)

    monkeypatch.setattr(control, "call", refuse)
    assert (await cluster.until((await cluster.submit())["id"]))["state"] == "succeeded"
    assert len(refused) == 3
