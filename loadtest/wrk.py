"""Use wrk as the client of small requests: it is fast enough to measure the server instead of the client."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.processes import find_program, run

# Requests are built before the clock starts, and wrk sends them in turn: several names without work per request.
GET_SCRIPT = """
local requests, at = {}, 0
function init(args)
  for path in io.lines(args[1]) do requests[#requests + 1] = wrk.format("GET", path) end
end
function request()
  at = at % #requests + 1
  return requests[at]
end
"""
# Every PUT has a different name; setup, which runs once per thread, numbers the threads.
PUT_SCRIPT = """
local threads, at = 0, 0
local body = string.rep("x", %d)
function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end
function request()
  at = at + 1
  return wrk.format("PUT", string.format("%s%%d-%%d", number, at), nil, body)
end
"""

PUT_NAMES_SCRIPT = """
local paths, at = {}, 0
local body = string.rep("x", %d)
function init(args)
  for path in io.lines(args[1]) do paths[#paths + 1] = path end
end
function request()
  at = at %% #paths + 1
  return wrk.format("PUT", paths[at], nil, body)
end
"""


class WrkError(RuntimeError):
    """wrk reported errors, or no rate."""


@dataclass(frozen=True, slots=True)
class WrkResult:
    """Requests per second over the run, and latencies in seconds."""

    requests_per_s: float
    requests: int
    p50_s: float
    p99_s: float


def parse_wrk(text: str) -> WrkResult:
    """Parse wrk's report (`--latency`). WrkError if a request failed, since a rate of errors is meaningless."""
    if bad := re.search(r"Non-2xx or 3xx responses: (\d+)", text):
        raise WrkError(f"{bad[1]} answers were errors")
    if bad := re.search(r"Socket errors: (.*)", text):
        raise WrkError(f"socket errors: {bad[1]}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    total = re.search(r"(\d+) requests in", text)
    if rate is None or total is None:
        raise WrkError(f"wrk reported no rate: {text[-500:]}")
    return WrkResult(float(rate[1]), int(total[1]), _latency(text, "50"), _latency(text, "99"))


def _latency(text: str, percent: str) -> float:
    found = re.search(rf"^\s+{percent}%\s+([\d.]+)(us|ms|s|m)\s*$", text, re.MULTILINE)
    if found is None:
        return 0.0
    return float(found[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[found[2]]


def wrk_get(url: str, paths: Sequence[str], directory: Path, *, connections: int, seconds: int) -> WrkResult:
    """GET these paths in turn over keep-alive connections from one thread."""
    script, names = directory / "get.lua", directory / "paths.txt"
    script.write_text(GET_SCRIPT)
    names.write_text("".join(f"{path}\n" for path in paths))
    return _wrk(url, script, connections, seconds, str(names))


def wrk_put(url: str, prefix: str, size: int, directory: Path, *, connections: int, seconds: int) -> WrkResult:
    """PUT bodies of `size` bytes to new names that begin with `prefix` (a path), from one thread."""
    script = directory / "put.lua"
    script.write_text(PUT_SCRIPT % (size, prefix))
    return _wrk(url, script, connections, seconds)


def wrk_put_names(url: str, paths: Sequence[str], size: int, directory: Path, *, connections: int, seconds: int) -> WrkResult:
    """PUT bodies of `size` bytes to these paths in turn, from one thread."""
    script, names = directory / "put-names.lua", directory / "paths.txt"
    script.write_text(PUT_NAMES_SCRIPT % size)
    names.write_text("".join(f"{path}\n" for path in paths))
    return _wrk(url, script, connections, seconds, str(names))


def _wrk(url: str, script: Path, connections: int, seconds: int, *arguments: str) -> WrkResult:
    program = find_program("wrk")
    if program is None:
        raise FileNotFoundError("wrk is not installed")
    argv = [program, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "--latency", "-s", str(script), url]
    if arguments:
        argv += ["--", *arguments]
    return parse_wrk(run(argv, timeout_s=seconds + 60))
