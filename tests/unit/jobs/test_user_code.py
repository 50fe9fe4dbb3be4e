"""Code of users in `map`: what it is given and may give, and that hostile code ends as a failed sample and nothing else."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from folder_store import run_job
from harness import wait_for
from job_shards import job, json_of, members_of, put, samples

from dfc.jobs.operations.map import MapFailed, seed_of
from dfc.jobs.sandbox import parent
from dfc.jobs.sandbox.isolation import WireSample
from dfc.jobs.sandbox.parent import SampleFailed, Sandbox, UserCodeRefused

ROOT = Path(__file__).resolve().parents[3]
MODULE = """
import os, sys, time

def double(sample, suffix="-2"):
    yield sample
    yield {**sample, "__key__": sample["__key__"] + suffix}

def nothing(sample):
    return []

def draw(sample):
    import random
    sample["random"] = str(random.random()).encode()
    return [sample]

def draw_numpy(sample):
    import numpy
    sample["random"] = str(numpy.random.random()).encode()
    return [sample]

def fail_for_b(sample):
    if sample["__key__"] == "b":
        raise ValueError("no b, please")
    return [sample]

def leave(sample):
    sys.exit(3)

def vanish(sample):
    os._exit(3)

def crash(sample):
    import ctypes
    ctypes.string_at(0)

def kill_all(sample):
    import signal
    os.kill(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(9)

def sleep(sample):
    time.sleep(1000)

def spin(sample):
    while True:
        pass

def hog(sample):
    return [{**sample, "x": b"x" * (8 << 30)}]

def bomb(sample):
    children = 0
    try:
        while children < 5000:
            if os.fork() == 0:
                time.sleep(1000)
            children += 1
    except OSError:
        pass
    return [{"__key__": sample["__key__"], "forks": str(children).encode()}]

def escape(sample):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    return [sample]

def look(sample):
    found = {"uid": str(os.getuid()), "environment": repr(dict(os.environ)), "descriptors": "", "cwd": os.getcwd()}
    found["descriptors"] = repr([fd for fd in range(3, 1024) if _is_open(fd)])
    return [{"__key__": sample["__key__"], **{name: text.encode() for name, text in found.items()}}]

def _is_open(fd):
    try:
        os.fstat(fd)
        return True
    except OSError:
        return False

def touch(sample, paths=()):
    done = {"__key__": sample["__key__"]}
    for number, path in enumerate(paths):
        for verb, mode in (("read", "rb"), ("write", "ab")):
            try:
                with open(path, mode) as file:
                    file.read() if verb == "read" else file.write(b"x")
                done[f"{verb}{number}"] = b"done"
            except OSError as error:
                done[f"{verb}{number}"] = type(error).__name__.encode()
    return [done]

def connect(sample, port=0):
    import socket
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
        return [{**sample, "net": b"connected"}]
    except OSError:
        return [{**sample, "net": b"refused"}]

def fill(sample):
    written = 0
    try:
        for number in range(10):
            with open(f"file{number}", "wb") as file:
                for _ in range(20):
                    written += file.write(bytes(1 << 20))
    except OSError:
        pass
    return [{"__key__": sample["__key__"], "written": str(written).encode()}]

def garbage(sample):
    print("garbage")
    for fd in range(3, 256):
        try:
            os.write(fd, b"\\xff" * 100)
        except OSError:
            pass
    time.sleep(1000)

def huge_frame(sample):
    for fd in range(3, 256):
        try:
            os.write(fd, b"\\xff\\xff\\xff\\xff")
        except OSError:
            pass
    time.sleep(1000)

def close_pipes(sample):
    os.closerange(3, 256)
    time.sleep(1000)

def answer_twice(sample):
    return [sample, sample]

def give(sample, what="none"):
    return {
        "none": None, "text": ["x"], "bare": [{"jpg": b""}], "empty": [{"__key__": "a"}],
        "value": [{"__key__": "a", "x": 1}], "slash": [{"__key__": "a", "x/y": b""}],
        "dot": [{"__key__": "a.b", "x": b""}], "up": [{"__key__": "a", "X": b"1"}],
        "hidden": [{"__key__": "d/.a", "x": b""}], "long": [{"__key__": "a" * 5000, "x": b""}],
        "surrogate": [{"__key__": "\\ud800", "x": b""}], "nul": [{"__key__": "a\\0", "x": b""}],
        "case": [{"__key__": "a", "X": b"1", "x": b"2"}],
    }[what]
"""
NAMES = [line.split()[1].split("(")[0] for line in MODULE.splitlines() if line.startswith("def ") and "_is_open" not in line]


@pytest.fixture
def registered(monkeypatch):
    """A module with all these functions as entry points, found where packages are found, and readable for everybody."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    info = directory / "usercode-1.dist-info"
    info.mkdir(parents=True)
    (directory / "usercode.py").write_text(MODULE)
    lines = "".join(f"{name} = usercode:{name}\n" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[dfc.map]\n{lines}missing = usercode:nowhere\nbroken = nosuchmodule:f\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: usercode\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(directory))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def sandbox(tmp_path, registered):
    """Opens one over a function; all are closed at the end."""
    opened = []

    def start(function=None, timeout_s=20.0, **options):
        scratch = tmp_path / f"scratch{len(opened)}"
        scratch.mkdir()
        opened.append(Sandbox(str(scratch), lambda: None, function=function, timeout_s=timeout_s, calls=10, **options))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def mapped(folder, twice=False, **options):
    return run_job(folder, job("map", "m-%03d.tar", **options), twice=twice)


def processes_in(session):
    """Those that are alive and belong to this session, or are children of its first one."""
    listing = subprocess.run(["ps", "-eo", "sid=,stat="], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if line.split()[0] == str(session) and not line.split()[1].startswith("Z")]


def namespace_of_child(pid):
    """The process namespace of the only child."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return os.readlink(f"/proc/{child}/ns/pid")


def inhabitants(space):
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and os.readlink(entry / "ns/pid") == space:
                found.append(entry.name)
    return found


SAMPLE = WireSample("a", {"jpg": b"123"})


# --- Functions that behave.


@pytest.mark.parametrize("size", [{}, {"samples_per_shard": 3}])
def test_a_function_gives_any_number_of_samples(tmp_path, registered, size):
    put(tmp_path, "a.tar", samples("ab", txt="{key}"))
    put(tmp_path, "b.tgz", samples("c", txt="{key}"))
    done = mapped(tmp_path, function="double", args={"suffix": "+"}, twice=True, **size)
    names = [name for output in sorted(done.outputs) for name, _ in members_of(done.outputs[output])]
    assert names == ["a.txt", "a+.txt", "b.txt", "b+.txt", "c.txt", "c+.txt"]
    assert len(done.outputs) == 2
    assert mapped(tmp_path / ".", function="nothing").samples == 0


@pytest.mark.parametrize("function", ["draw", "draw_numpy"])
def test_random_numbers_follow_from_seed_and_ordinal(tmp_path, registered, function):
    put(tmp_path, "a.tar", samples("abc", txt="x"))
    put(tmp_path, "b.tar", samples("de", txt="x"))

    def drawn(seed=0):
        done = mapped(tmp_path, function=function, seed=seed, twice=True)
        return [data for output in sorted(done.outputs) for name, data in members_of(done.outputs[output]) if "random" in name]

    first = drawn()
    assert len(set(first)) == 5
    assert drawn() == first
    assert not set(drawn(seed=1)) & set(first)
    if function == "draw":
        assert first[4].decode() == str(random.Random(seed_of(0, 4)).random())


def test_a_function_that_fails(tmp_path, registered):
    put(tmp_path, "a.tar", samples("abc", txt="x"))
    with pytest.raises(MapFailed, match=r"in/a.tar: sample 'b': ValueError: no b, please"):
        mapped(tmp_path, function="fail_for_b")
    done = mapped(tmp_path, function="fail_for_b", on_error="report")
    assert [name for name, _ in members_of(done.outputs["m-000.tar"])] == ["a.txt", "c.txt"]
    assert json_of(done.outputs["m-errors.ndjson"])["error"] == "ValueError: no b, please"


@pytest.mark.parametrize("name", ["unheard-of", "missing", "broken"])
def test_a_function_that_is_not_there_fails_the_job_whatever_it_does_with_errors(tmp_path, registered, name):
    put(tmp_path, "a.tar", samples("abc", txt="x"))
    with pytest.raises(UserCodeRefused):
        mapped(tmp_path, function=name, on_error="skip")


@pytest.mark.parametrize(
    "what", ["none", "text", "bare", "empty", "value", "slash", "dot", "hidden", "long", "surrogate", "nul", "case"]
)
def test_what_is_no_sample_is_a_failure(tmp_path, registered, what):
    put(tmp_path, "a.tar", samples("a", txt="x"))
    with pytest.raises(MapFailed, match=r"in/a.tar: sample 'a'"):
        mapped(tmp_path, function="give", args={"what": what})


def test_extensions_are_in_lower_case(tmp_path, registered):
    put(tmp_path, "a.tar", samples("a", txt="x"))
    assert members_of(mapped(tmp_path, function="give", args={"what": "up"}).outputs["m-000.tar"]) == [("a.x", b"1")]


# --- Hostile ones.


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("leave", "SystemExit"),
        ("vanish", "process ended"),
        ("crash", "process ended"),
        ("kill_all", "process ended"),
        ("hog", "MemoryError"),
        ("sleep", "timed out after 1 s"),
        ("spin", "timed out after 1 s"),
        ("garbage", "sent an invalid reply|timed out after 1 s"),
        ("huge_frame", "sent an invalid reply"),
        ("close_pipes", "process ended|timed out after 1 s"),
    ],
)
def test_hostile_functions_fail_their_sample_and_the_next_one_works(sandbox, function, message):
    box = sandbox(function, timeout_s=1.0 if "timed out" in message else 60.0)
    for _ in range(2):
        with pytest.raises(SampleFailed, match=message):
            box.call(1, SAMPLE)
    assert box._process is None or function in ("leave", "hog")


def test_a_fork_bomb_is_bounded_and_nothing_of_it_is_left(sandbox):
    box = sandbox("bomb")
    (made,) = box.call(1, SAMPLE)
    assert int(made.fields["forks"]) < 100
    session = box._process.pid
    assert len(processes_in(session)) > 1
    box.close()
    wait_for(lambda: not processes_in(session), "the kernel to take them down one by one")


def test_who_leaves_the_session_is_killed_all_the_same(sandbox):
    box = sandbox("escape")
    box.call(1, SAMPLE)
    if "processes" not in box.isolation:
        pytest.skip("the kernel grants no namespaces here")
    space = namespace_of_child(box._process.pid)
    wait_for(lambda: len(inhabitants(space)) > 1, "the one who leaves")
    box.close()
    wait_for(lambda: not inhabitants(space), "all to end")


def test_nothing_is_inherited(sandbox, monkeypatch):
    monkeypatch.setenv("DFC_TOKEN", "secret")
    (made,) = sandbox("look").call(1, SAMPLE)
    assert b"secret" not in made.fields["environment"]
    assert b"DFC" not in made.fields["environment"]
    assert len(json_of(made.fields["descriptors"])) == 2  # the two pipes of the sandbox itself
    if os.geteuid() == 0:
        assert made.fields["uid"] == b"65534"


def test_files_outside_are_out_of_reach(sandbox, tmp_path, registered):
    mine = tmp_path / "blob"
    mine.write_bytes(b"of the store")
    mine.chmod(0o666)
    paths = [str(mine), "/etc/shadow", "/proc/1/environ", "/tmp/sandbox-test", str(registered / "usercode.py"), "inside"]
    box = sandbox("touch", args={"paths": paths})
    (made,) = box.call(1, SAMPLE)
    if "files" not in box.isolation:
        pytest.skip("this kernel has no Landlock")
    assert made.fields["read0"] != b"done"
    assert all(made.fields[f"write{number}"] != b"done" for number in range(5))
    assert made.fields["read1"] != b"done"
    assert made.fields["write5"] == b"done"
    assert mine.read_bytes() == b"of the store"


def test_the_network_is_out_of_reach(sandbox):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        box = sandbox("connect", args={"port": server.getsockname()[1]})
        (made,) = box.call(1, SAMPLE)
    if not {"network", "files"} & set(box.isolation):
        pytest.skip("the kernel grants neither namespaces nor Landlock")
    assert made.fields["net"] == b"refused"


def test_scratch_is_bounded(sandbox):
    box = sandbox("fill", file_bytes=32 << 20)
    (made,) = box.call(1, SAMPLE)
    if "bounded scratch" not in box.isolation:
        pytest.skip("the kernel grants no namespaces here")
    assert int(made.fields["written"]) <= 32 << 20


def test_a_cancelled_job_does_not_wait_for_user_code(tmp_path, registered):
    class Cancelled(Exception):
        pass

    begun = time.monotonic()

    def check():
        if time.monotonic() > begun + 2:
            raise Cancelled

    (tmp_path / "scratch").mkdir()
    box = Sandbox(str(tmp_path / "scratch"), check, function="sleep", timeout_s=100.0, calls=1)
    with pytest.raises(Cancelled):
        box.call(1, SAMPLE)
    assert time.monotonic() - begun < 10
    assert box._process is None


# --- Where the kernel, or a container around it, grants less.

# Where Python lies in a directory of root: mounted over in a namespace of its own, so that others find what they may read.
REACHABLE = """
import os, sys
import dfc.jobs.sandbox.isolation as isolation

closed = {closed!r}
if closed:
    assert isolation._LIBC.unshare(0x20000) == 0
    isolation._mount(None, "/", None, isolation._PRIVATE | isolation._RECURSIVE)
    isolation._expose(closed)
"""
DENIED = """
class Kernel:
    def __init__(self, kernel):
        self._kernel = kernel
    def __getattr__(self, name):
        return (lambda *arguments: -1) if name in {denied!r} else getattr(self._kernel, name)

isolation._LIBC = Kernel(isolation._LIBC)
from dfc.jobs.sandbox import child
child.main()
"""


def reachable(*paths):
    """The program text after which another user finds Python, the product and these paths."""
    paths = [sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), str(ROOT), *map(str, paths)]
    closed = [path for path in paths if not _others_may_read(path)] if os.geteuid() == 0 else []
    if closed and subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip(f"only root may read {closed[0]}, and nothing can be mounted")
    return REACHABLE.replace("{closed!r}", repr(closed))


def _others_may_read(path):
    return all(os.stat(each).st_mode & 0o001 for each in (path, *map(str, Path(path).parents)))


@pytest.fixture(params=[("unshare", "mount"), ("unshare", "mount", "syscall")], ids=["no namespaces", "nor Landlock"])
def poorer_kernel(request, monkeypatch, registered, tmp_path):
    text = reachable(registered, tmp_path) + DENIED.replace("{denied!r}", repr(request.param))
    monkeypatch.setattr(parent, "CHILD_ARGUMENTS", ("-I", "-c", text))


@pytest.mark.parametrize(
    ("function", "message"),
    [("vanish", "process ended"), ("sleep", "timed out after 1 s"), ("garbage", "invalid reply|timed out after 1 s")],
)
def test_hostile_functions_without_namespaces(sandbox, poorer_kernel, function, message):
    box = sandbox(function, timeout_s=1.0 if "timed out" in message else 60.0)
    with pytest.raises(SampleFailed, match=message):
        box.call(1, SAMPLE)
    assert "network" not in box.isolation


def test_a_fork_bomb_without_namespaces(sandbox, poorer_kernel):
    box = sandbox("bomb")
    (made,) = box.call(1, SAMPLE)
    session = box._process.pid
    assert int(made.fields["forks"]) < 1000  # of 5000; what others of this user run, or have just left, counts as well
    box.close()
    wait_for(lambda: not processes_in(session), "the processes to end")


NO_USER_NAMESPACES = """
kernel = isolation._LIBC

class Kernel:
    def __getattr__(self, name):
        return getattr(kernel, name)
    def unshare(self, flags):
        return -1 if flags & isolation._NEW_USER else kernel.unshare(flags)

isolation._LIBC = Kernel()
from dfc.jobs.sandbox import child
child.main()
"""


@pytest.fixture
def seventy_of_the_same_user():
    """Processes of the user whom user code runs as, more than a sandbox may have."""
    script = "for number in $(seq 70); do sleep 1000 & done; echo; wait"
    user = {"user": 65534} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, **user) as others:
        try:
            assert others.stdout.readline() == b"\n"
            yield
        finally:
            os.killpg(others.pid, signal.SIGKILL)


def test_others_of_the_same_user_take_no_process_away(sandbox, registered, tmp_path, monkeypatch, seventy_of_the_same_user):
    """Where a user who is not root gets no namespace of users, as some distributions have it, the kernel counts them all."""
    monkeypatch.setattr(parent, "CHILD_ARGUMENTS", ("-I", "-c", reachable(registered, tmp_path) + NO_USER_NAMESPACES))
    box = sandbox(command=["sh", "-c", "sleep 0 & wait; cp sample.jpg out/"])
    assert box.call(1, SAMPLE) == [SAMPLE]


def test_commands_without_namespaces(sandbox, poorer_kernel):
    box = sandbox(command=["sh", "-c", "sleep 1000 & cp sample.jpg out/"])
    assert box.call(1, SAMPLE) == [SAMPLE]


OTHER_USER = """
for directory in sys.argv[1:3]:
    os.chown(directory, 65533, 65533)
os.setgroups([])
os.setresgid(65533, 65533, 65533)
os.setresuid(65533, 65533, 65533)
environment = {"PATH": os.environ["PATH"], "HOME": sys.argv[1], "TMPDIR": sys.argv[2]}
os.execve(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[3:]], environment)
"""


ATTACKS = "vanish or kill_all or hog or bomb or session or inherited or reach or scratch or behind"


@pytest.mark.skipif(os.geteuid() != 0, reason="all of this file has run as an ordinary user")
def test_an_ordinary_user_is_shut_in_as_well(registered):
    """Without root there are user namespaces, and no change of user: the same attacks, made by another one."""
    with tempfile.TemporaryDirectory() as replica, tempfile.TemporaryDirectory() as temporary:
        text = reachable(replica, temporary) + OTHER_USER
        options = ["-q", "-n0", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-k", ATTACKS, __file__]
        command = [sys.executable, "-c", text, replica, temporary, *options]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280)
    assert done.returncode == 0, done.stdout
    assert re.search(r"1\d passed", done.stdout), done.stdout


# --- Commands.


def test_a_command_turns_files_into_files(tmp_path):
    put(tmp_path, "a.tar", samples(["d/a", "d/b"], txt="of {key}", cls="1"))
    script = 'tr a-z A-Z <sample.txt >out/sample.txt; cp sample.cls out/sample-x.cls; mkdir out/e; echo "$0 $1" >out/e/$2.txt'
    command = ["sh", "-c", script, "{key}", "{seed}", "n{seed}"]
    done = mapped(tmp_path, command=command, twice=True)
    seed = seed_of(0, 0)
    assert members_of(done.outputs["m-000.tar"])[:3] == [
        (f"e/n{seed}.txt", f"d/a {seed}\n".encode()),
        ("d/a-x.cls", b"1"),
        ("d/a.txt", b"OF D/A"),
    ]
    assert done.samples == 6


def test_a_command_without_outputs_drops_the_sample(tmp_path):
    put(tmp_path, "a.tar", samples("ab", txt="x"))
    assert mapped(tmp_path, command=["true"]).samples == 0


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo broken >&2; exit 3", "the command exited with 3: broken"),
        ("kill -9 $$", "the command exited with -9"),
        ("echo x >out/nodot", "out/nodot is not named like a field"),
        ("ln -s /etc/passwd out/sample.txt", "not a regular file"),
        ("mkfifo out/sample.txt", "not a regular file"),
        ("sleep 1000", "timed out after 2 s"),
    ],
)
def test_commands_that_fail(tmp_path, script, message):
    put(tmp_path, "a.tar", samples("ab", txt="x"))
    with pytest.raises(MapFailed, match=message):
        mapped(tmp_path, command=["sh", "-c", script], timeout=2 if "timed out" in message else 60)


def test_commands_leave_no_process_behind(sandbox):
    box = sandbox(command=["sh", "-c", "sleep 98765 & setsid sleep 98765 & cp sample.jpg out/"])
    assert box.call(1, SAMPLE) == [SAMPLE]
    assert box.call(1, SAMPLE) == [SAMPLE]
    if "processes" in box.isolation:
        listing = subprocess.run(["ps", "-eo", "user=,args="], capture_output=True, text=True, check=True).stdout
        assert not [line for line in listing.splitlines() if line.startswith("nobody") and "sleep 98765" in line]


def test_a_command_that_is_not_there(tmp_path):
    put(tmp_path, "a.tar", samples("ab", txt="x"))
    with pytest.raises(UserCodeRefused, match="program 'no-such-program' not found"):
        mapped(tmp_path, command=["no-such-program"], on_error="skip")


def test_a_command_has_nothing_in_its_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DFC_TOKEN", "secret")
    put(tmp_path, "a.tar", samples("a", txt="x"))
    done = mapped(tmp_path, command=["sh", "-c", "env >out/sample.txt"])
    assert b"secret" not in members_of(done.outputs["m-000.tar"])[0][1]
