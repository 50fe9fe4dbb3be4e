"""What may be in the way of the outputs of a job at its end."""

from __future__ import annotations

from inprocess import Gate, content_of, stage, until


async def test_overwriting_leaves_others_with_a_warning(make):
    cluster = await make()
    for number in (1, 7, 8):
        await cluster.ask("PUT", f"/out/out-{number:04}", b"old")
    ended = await cluster.until((await cluster.submit(overwrite=True))["id"])
    assert ended["warnings"] == [
        "existing objects that match the output pattern were left unchanged: 'out-0007' and 1 more",
    ]  # fmt: skip
    assert await cluster.ask("GET", "/out/out-0001") == (200, content_of("out-0001", 10).decode())
    assert await cluster.ask("GET", "/out/out-0007") == (200, "old")


async def test_an_object_that_appears_meanwhile(make):
    cluster = await make()
    gate = cluster.engine.before = Gate()
    job = await cluster.submit()
    await gate.reached.wait()
    await cluster.ask("PUT", "/out/out-0002", b"mine")
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "output_exists")
    assert await cluster.ask("GET", "/out/out-0002") == (200, "mine")
    assert await cluster.names() == ["out-0002"]


async def test_a_bucket_that_is_deleted_meanwhile(make):
    cluster = await make()
    gate = cluster.engine.before = Gate()
    job = await cluster.submit()
    await gate.reached.wait()
    assert (await cluster.ask("DELETE", "/v1/buckets/out"))[0] == 204
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert ended["state"] == "failed", ended
    await cluster.until_nothing_is_staged()
    assert (await cluster.ask("GET", "/v1/buckets/out"))[0] == 404, "no task has made it anew"


async def test_staged_objects_that_are_not_what_was_written(make):
    cluster = await make()
    gate = cluster.engine.before = Gate(2)
    job = await cluster.submit()
    await gate.reached.wait()

    async def has_two() -> bool:
        return sum((await cluster.staged()).values()) == 2

    await until(has_two)
    await stage(cluster.url, job["id"], "out", "out-0001", b"other")
    gate.opened.set()
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "output_lost")
    assert await cluster.names() == []
