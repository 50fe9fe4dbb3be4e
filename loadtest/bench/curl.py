"""curl as the client of single streams: rates by its own clock, sizes and status codes checked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.processes import ProcessFailed, run

TIMEOUT_S = 300


def curl_get(urls: Sequence[str], least_bytes: int) -> float:
    """GET these URLs one after another on one connection: bytes of bodies a second of transfer time."""
    argv = ["curl", "-s", "-S", "--max-time", str(TIMEOUT_S), "-w", "%{http_code} %{size_download} %{time_total}\n"]
    for url in urls:
        argv += ["-o", "/dev/null", url]
    total_bytes, total_s = 0, 0.0
    for line in run(argv, timeout_s=TIMEOUT_S + 10).splitlines():
        code, size, seconds = line.split()
        if code != "200" or int(size) < least_bytes:
            raise ProcessFailed(f"curl got {code} and {size} bytes")
        total_bytes += int(size)
        total_s += float(seconds)
    return total_bytes / total_s


def curl_put(file: Path, url: str, *, sync: Path | None = None) -> float:
    """`curl -T FILE URL`, then `sync FILE` of the stored file when one is given: bytes of body a second of both together."""
    argv = ["curl", "-s", "-S", "--max-time", str(TIMEOUT_S), "-w", "\n%{http_code} %{size_upload} %{time_total}"]
    code, size, seconds = run([*argv, "-T", str(file), url], timeout_s=TIMEOUT_S + 10).splitlines()[-1].split()
    if code not in ("200", "201", "204") or int(size) != file.stat().st_size:
        raise ProcessFailed(f"curl -T got {code} after {size} bytes")
    total_s = float(seconds)
    if sync is not None:
        begin = time.monotonic()
        run(["sync", str(sync)])
        total_s += time.monotonic() - begin
    return int(size) / total_s
