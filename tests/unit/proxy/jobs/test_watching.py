"""Streams of events: what they tell, and how they end."""

from __future__ import annotations

import json

import aiohttp
import pytest
from inprocess import Gate

from dfc.errors import JobNotFound
from dfc.proxy.jobs import queue


async def test_events(cluster):
    gate = cluster.engine.before = Gate(1)
    job = await cluster.submit()
    url = f"{cluster.url}/v1/jobs/{job['id']}/events"
    async with cluster.session.get(url, headers={"Last-Event-ID": "17"}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        seen, lines = [], []
        async for line in answer.content:
            lines.append(line.decode())
            if line.startswith(b"data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1]["progress"]["tasks"]["done"] == 1:
                    gate.opened.set()
    assert lines[0] == "id: 1\n"
    assert lines[1] == "event: job\n"
    assert seen[-1] == await cluster.until(job["id"])
    order = ["queued", "running", "publishing", "succeeded"]
    states = [order.index(each["state"]) for each in seen]
    assert states == sorted(states)
    assert len(seen) >= 3
    status, text = await cluster.ask("GET", f"/v1/jobs/{job['id']}/events")
    assert (status, text.count("event: job")) == (200, 1)
    assert (await cluster.ask("GET", "/v1/jobs/nonsense/events"))[0] == 404


async def test_a_stream_has_heartbeats_and_breaks_when_the_proxy_ends(make, monkeypatch):
    monkeypatch.setattr(queue, "HEARTBEAT_S", 0.05)
    cluster = await make()
    _, job = await cluster.submit_held()
    async with cluster.session.get(f"{cluster.url}/v1/jobs/{job['id']}/events") as answer:
        while not (await answer.content.readline()).startswith(b": "):
            pass
        await cluster.stop_proxy()
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


async def test_nothing_is_kept_of_those_who_looked_on_at_a_job_that_has_ended(cluster):
    job = await cluster.submit()
    await cluster.until(job["id"])
    service = cluster.proxy.jobs
    looking = service.watch(job["id"])
    assert (await anext(looking)).state == "succeeded"
    await looking.aclose()
    with pytest.raises(JobNotFound):
        await anext(service.watch("none"))
    assert service._watchers._pulses == {}
