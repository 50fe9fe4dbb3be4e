"""Logs: every line is a JSON object, whatever a client puts into a path, and a slow reader stalls nobody."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import sys

import pytest

from dfc.logs import AccessLog, JsonFormatter, configure_logging, timestamp


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def lines_of(descriptor: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in os.read(descriptor, 1 << 20).decode().splitlines()]


def test_an_access_line(pipe):
    log = AccessLog(pipe[1])
    log.line("127.0.0.1", "GET", "/b/x", 200, 10, 0, 0.0123456, "id-1")
    log.close()
    (line,) = lines_of(pipe[0])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line.pop("time")))
    assert line == {
        "access": "GET /b/x", "status": 200, "sent": 10, "received": 0, "seconds": 0.012346, "remote": "127.0.0.1",
        "request_id": "id-1",
    }  # fmt: skip


@pytest.mark.parametrize(
    "path", ['/"', "/\\", "/\n", "/\x00", "/ä", "/\u2028", '/","status":500,"x":"', "/\udcff", "/\x1b[31m"]
)
def test_hostile_paths_stay_within_their_field(pipe, path):
    log = AccessLog(pipe[1])
    log.line("127.0.0.1", "GET", path, 404, 0, 0, 0.1, "id")
    log.close()
    raw = os.read(pipe[0], 1 << 20)
    assert raw.count(b"\n") == 1
    assert not re.search(rb"[\x00-\x09\x0b-\x1f]", raw)
    line = json.loads(raw)
    assert line["status"] == 404
    assert str(line["access"]).startswith("GET /")


def test_lines_over_the_limit_are_dropped_and_counted():
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, 1031, 4096)  # F_SETPIPE_SZ: soon full
        log = AccessLog(write, limit_lines=100)
        for number in range(10_000):
            log.line("127.0.0.1", "GET", f"/{number}", 200, 0, 0, 0.1, "id")
        assert log.dropped_lines >= 10_000 - 300
    finally:
        os.close(read)  # the thread's write ends with EPIPE
        log.close()
        os.close(write)


def test_a_log_that_nobody_reads_any_more():
    read, write = os.pipe()
    os.close(read)
    log = AccessLog(write)
    log.line("127.0.0.1", "GET", "/", 200, 0, 0, 0.1, "id")
    log.close()
    assert log.dropped_lines == 1
    os.close(write)


def test_an_event_is_one_line_with_its_traceback():
    record = logging.LogRecord("dfc.x", logging.WARNING, __file__, 1, "a\n%s", ("ü",), None)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["logger"], found["message"]) == ("warning", "dfc.x", "a\nü")
    try:
        raise ValueError("why")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert "ValueError: why" in json.loads(JsonFormatter().format(record))["traceback"]


def test_events_go_to_standard_error(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging("warning")
        logging.getLogger("dfc.x").info("not this")
        logging.getLogger("dfc.x").warning("this")
        assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["this"]
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_timestamps():
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1_700_000_000.9999) == "2023-11-14T22:13:20.999Z"
