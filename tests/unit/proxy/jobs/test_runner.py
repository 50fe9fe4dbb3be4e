"""Tasks that fail, or are not what was planned, and what a job says of them."""

from __future__ import annotations

import pytest
from inprocess import tar_of_names, until

from dfc.engine.base import EngineLost, TaskFailed


async def test_what_passes_is_tried_again(cluster):

    async def fail(task) -> None:
        if task.number == 1 and cluster.engine.ran["probe.first/1"] == 1:
            raise EngineLost("the worker died")
        if task.number == 2 and cluster.engine.ran["probe.first/2"] < 4:
            raise TaskFailed("unavailable", "a target restarts", True)

    cluster.engine.before = fail
    ended = await cluster.until((await cluster.submit(options={"tasks": 5}))["id"])
    assert ended["state"] == "succeeded"
    assert cluster.engine.ran == {
        "probe.first/0": 1, "probe.first/1": 2, "probe.first/2": 4, "probe.first/3": 1, "probe.first/4": 1,
    }  # fmt: skip

    async def is_counted() -> bool:
        return 'dfc_jobs{state="succeeded"} 1.0' in (await cluster.ask("GET", "/metrics"))[1]

    await until(is_counted)
    _, text = await cluster.ask("GET", "/metrics")
    assert "dfc_job_task_retries_total 4.0" in text
    assert 'dfc_jobs_finished_total{operation="probe",state="succeeded"} 1.0' in text


@pytest.mark.parametrize(
    ("error", "tries", "code"),
    [
        (TaskFailed("bad_archive", "broken at 512", False), 1, "bad_archive"),
        (TaskFailed("unavailable", "never comes back", True), 4, "unavailable"),
        (EngineLost("killed by the kernel"), 4, "engine_lost"),
    ],
)
async def test_what_does_not_pass_fails_the_job_and_leaves_nothing(cluster, error, tries, code):

    async def fail(task) -> None:
        if task.number == 4:
            raise error

    cluster.engine.before = fail
    job = await cluster.submit(options={"tasks": 6})
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", code)
    assert ended["error"]["message"].startswith("label-4: ")
    assert str(error) in ended["error"]["message"]
    assert ended["output"] is None
    assert cluster.engine.ran["probe.first/4"] == tries
    await cluster.until_nothing_is_staged()
    assert await cluster.names() == []
    assert await cluster.names(prefix=".dfc/") == []
    assert (await cluster.ask("DELETE", f"/v1/jobs/{job['id']}"))[1]["state"] == "failed"


@pytest.mark.parametrize(
    ("mistake", "code"),
    [("tasks", "internal_error"), ("count", "internal_error"), ("same name", "output_written_twice")],
)
async def test_mistakes_end_one_job_only(cluster, mistake, code):
    good = await cluster.submit("good-%02d", options={"tasks": 50})
    ended = await cluster.until((await cluster.submit(options={"tasks": 5, "mistake": mistake}))["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", code)
    assert (await cluster.until(good["id"]))["state"] == "succeeded"
    await cluster.until_nothing_is_staged()


async def test_warnings_are_bounded(cluster):
    cluster.engine.warn = lambda task: (f"{task.label} is odd",)
    assert (await cluster.ask("PUT", "/in/dropped.tar", tar_of_names("a.jpg", "README", ".hidden")))[0] == 201
    ended = await cluster.until((await cluster.submit(options={"tasks": 150}))["id"])
    assert ended["warnings"][0] == "2 members belong to no sample and will be left out: in in/dropped.tar"
    assert len(ended["warnings"]) == 101
    assert ended["warnings"][-1] == "and 51 more warnings"


async def test_space_for_temporary_objects_is_looked_for_before_they_are_written(cluster):
    fits = await cluster.submit(options={"second": 1, "temporary": 1000})
    assert (await cluster.until(fits["id"]))["state"] == "succeeded"
    cluster.engine.ran.clear()
    job = await cluster.submit(pattern="b-%04d", options={"second": 1, "temporary": 1 << 60})
    ended = await cluster.until(job["id"])
    assert (ended["state"], ended["error"]["code"]) == ("failed", "no_space")
    assert "1152921504606846976 bytes" in ended["error"]["message"]
    assert len(cluster.engine.ran) == 3, "the stage before has run, this one has not begun"
