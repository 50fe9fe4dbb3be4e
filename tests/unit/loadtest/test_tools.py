"""The instruments of the benchmark: the discarding client, wrk's report, child processes, nginx."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from harness import wait_for

from loadtest.addresses import Address
from loadtest.bench.context import filesystem_type
from loadtest.connection import Connection, HttpFailure
from loadtest.discard import DiscardError, DiscardStream, discard_all
from loadtest.discard import main as discard_main
from loadtest.nginx import nginx
from loadtest.processes import (
    Child,
    ProcessFailed,
    accepts,
    descendants,
    find_program,
    free_port,
    listener_pid,
    memory_bytes,
    processor_seconds,
    run,
    running,
)
from loadtest.wrk import WrkError, parse_wrk

ROOT = Path(__file__).parents[3]
SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
REPORT = """Running 2s test @ http://127.0.0.1:36115
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   376.33us  137.79us   3.92ms   90.81%
    Req/Sec    93.73k     4.73k  101.30k    75.00%
  Latency Distribution
     50%  375.00us
     75%  417.00us
     90%  480.00us
     99%    1.50ms
  186325 requests in 2.00s, 227.22MB read
Requests/sec:  93121.34
Transfer/sec:    113.56MB
"""


def test_discarded_bytes_are_counted_exactly(stand_in):
    stand_in.objects |= {f"/{number}": os.urandom(1_000_003 + number) for number in range(3)}
    urls = [f"{stand_in.url}/{number}" for number in range(3)]
    count, seconds = discard_all(urls, 4)
    assert count == 4 * (3 * 1_000_003 + 3)
    assert seconds > 0


def test_nothing_of_a_discarded_body_is_kept(stand_in):
    stand_in.objects["/big"] = bytes(64 << 20)
    before = memory_bytes(os.getpid())[0]
    stream = DiscardStream(f"{stand_in.url}/big")
    stream.get()
    stream.close()
    # The handoff replica lives in this process too: it sends from what it already holds.
    assert memory_bytes(os.getpid())[0] - before < 16 << 20


def test_discarding_refuses_errors_and_other_machines(stand_in):
    with pytest.raises(DiscardError, match="404"):
        discard_all([f"{stand_in.url}/missing"], 1)
    with pytest.raises(DiscardError, match="this machine"):
        DiscardStream("http://192.0.2.1/")


def test_discard_prints_json(stand_in, capsys):
    stand_in.objects["/a"] = b"x" * 1000
    assert discard_main(["--rounds", "2", f"{stand_in.url}/a"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 2000


def test_wrk_report_is_read():
    result = parse_wrk(REPORT)
    assert (result.requests_per_s, result.requests) == (93121.34, 186325)
    assert (result.p50_s, result.p99_s) == (pytest.approx(375e-6), pytest.approx(1.5e-3))


@pytest.mark.parametrize(
    "line", ["  Non-2xx or 3xx responses: 3\n", "  Socket errors: connect 0, read 1, write 0, timeout 0\n"]
)
def test_wrk_with_errors_is_no_rate(line):
    with pytest.raises(WrkError):
        parse_wrk(REPORT + line)
    with pytest.raises(WrkError):
        parse_wrk("nothing")


def test_a_child_is_ended_when_the_block_is_left(tmp_path):
    with running(SLEEPER, tmp_path / "log") as child:
        assert child.pid in descendants(os.getpid())
    assert child.process.returncode == -signal.SIGTERM


def test_a_child_dies_with_its_killed_parent(tmp_path):
    code = (
        "import sys, time, pathlib; from loadtest.processes import Child;"
        f"child = Child({SLEEPER!r}, pathlib.Path(sys.argv[1]));"
        "child.wait_until(lambda: 'up' in child.log.read_text(), 30, 'life');"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    wait_for(lambda: state_of(child) in ("", "Z"), "its end")


def state_of(pid: int) -> str:
    """As in /proc; empty when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2]
    return ""


def test_a_child_that_fails_shows_its_log(tmp_path):
    argv = [sys.executable, "-c", "import sys; sys.exit('no disk')"]
    with running(argv, tmp_path / "log") as child, pytest.raises(ProcessFailed, match="no disk"):
        child.wait_until(lambda: False, 30, "readiness")


def test_a_child_that_is_not_ready_in_time(tmp_path):
    with running(SLEEPER, tmp_path / "log") as child, pytest.raises(ProcessFailed, match="no sign of readiness"):
        child.wait_until(lambda: False, 0.05, "readiness")


def test_settings_of_the_user_do_not_reach_a_child(tmp_path, monkeypatch):
    monkeypatch.setenv("DFC_TOKEN", "secret")
    code = "import os; print(sorted(n for n in os.environ if n.startswith('DFC_')))"
    child = Child([sys.executable, "-c", code], tmp_path / "log", env={"DFC_PORT": "0"})
    child.process.wait(30)
    child.end()
    assert child.log.read_text() == "['DFC_PORT']\n"


def test_run_reports_failures():
    assert run([sys.executable, "-c", "print(1)"]) == "1\n"
    with pytest.raises(ProcessFailed, match="exit code 3"):
        run([sys.executable, "-c", "import sys; sys.exit(3)"])


def test_the_listener_of_a_port_is_found(stand_in):
    port = stand_in.server_address[1]
    assert accepts(port)
    assert listener_pid(port, os.getpid()) == os.getpid()
    with pytest.raises(LookupError):
        listener_pid(free_port(), os.getpid())


def test_connection_sees_short_and_damaged_answers(stand_in):
    stand_in.objects["/a"] = b"0123456789"
    connection = Connection(Address("127.0.0.1", stand_in.server_address[1]))
    received = bytearray()
    assert connection.download("/a", received.extend).status == 200
    assert received == b"0123456789"
    assert connection.download("/b", received.extend).status == 404
    connection.close()


def test_a_body_that_ends_early_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")

        thread = threading.Thread(target=serve)
        thread.start()
        connection = Connection(Address("127.0.0.1", server.getsockname()[1]))
        with pytest.raises(HttpFailure, match="short_body"):
            connection.download("/", lambda piece: None)
        thread.join()
        connection.close()


def test_filesystem_type_of_proc():
    assert filesystem_type(Path("/proc/self")) == "proc"


def test_nginx_serves_and_stores(tmp_path):
    if find_program("nginx") is None:
        with pytest.raises(FileNotFoundError), nginx(tmp_path, workers=1):
            pass
        return
    with nginx(tmp_path, workers=1) as server:
        connection = Connection(Address("127.0.0.1", server.port))
        assert connection.request("PUT", "/folder/a", body=b"bytes").status == 201
        assert (server.root / "folder" / "a").read_bytes() == b"bytes"
        assert connection.request("GET", "/folder/a").body == b"bytes"
        connection.close()
    assert not accepts(server.port)


def test_time_on_processors_counts_children(tmp_path):
    busy = "while True: pass"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {busy!r}]).wait()"
    with running([sys.executable, "-c", code], tmp_path / "log") as child:
        child.wait_until(lambda: processor_seconds(child.pid) > 0.3, 30, "0.3 s on a processor")
        for pid in descendants(child.pid):
            os.kill(pid, signal.SIGKILL)


def test_an_interrupt_that_was_swallowed_is_remembered() -> None:
    program = """
import os, signal
from loadtest.processes import check_interrupted, interruptible
interruptible()
check_interrupted()
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass
try:
    check_interrupted()
except KeyboardInterrupt:
    print("remembered")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "remembered\n"
