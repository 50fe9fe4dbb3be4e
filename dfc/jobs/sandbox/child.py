"""The process that runs user code: it isolates itself, loads the code, then processes one sample after the other.

Started by `parent` as `python -I -m dfc.jobs.sandbox.child`, with pipes as standard input and output and nothing else open.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, BinaryIO, Final, cast

import msgspec

import dfc
from dfc.jobs.sandbox.isolation import LENGTH, Call, Ready, Reply, Setup, WireSample, frame, isolate
from dfc.tar.samples import split_key

KEY_FIELD: Final = "__key__"
_COMMAND_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_ERROR_CHARS: Final = 500
_OUTPUTS_MAX: Final = 10_000  # files of one sample

Work = Callable[[Call], list[WireSample]]


class UserCodeFailed(Exception):
    """User code returned something invalid, or its command failed. The message is for users."""


def main() -> None:
    """Process samples until the pipe is closed."""
    reader, writer = _take_pipes()
    setup = msgspec.msgpack.decode(_receive(reader) or b"", type=Setup)
    sys.path[:] = setup.module_path
    try:
        point = None if setup.function is None else find_entry_point(setup.function)
        readable = _readable(point)
        os.nice(setup.nice)
        isolation = isolate(setup, readable, _listable(point), (reader.fileno(), writer.fileno()))
        if setup.own:
            work = cast(Work, import_module(setup.own).work)
        else:
            work = _commands(setup.command, alone="processes" in isolation) if point is None else _function(point, setup.args)
    except Exception as error:
        _send(writer, Ready(error=_text(error)))
        return
    _send(writer, Ready(isolation))
    while content := _receive(reader):
        try:
            answer = Reply(work(msgspec.msgpack.decode(content, type=Call)))
            encoded = frame(answer)
        except BaseException as error:  # also SystemExit in user code
            encoded = frame(Reply(error=_text(error)))
        writer.write(encoded)
        writer.flush()


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move the pipes to descriptors that are not inherited, and connect standard input and output to /dev/null."""
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)
    return reader, writer


def _receive(reader: BinaryIO) -> bytes | None:
    head = reader.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return reader.read(LENGTH.unpack(head)[0])


def _send(writer: BinaryIO, value: Any) -> None:
    writer.write(frame(value))
    writer.flush()


def _text(error: BaseException) -> str:
    if isinstance(error, UserCodeFailed):
        return str(error)[:_ERROR_CHARS]
    return f"{type(error).__name__}: {str(error)[:_ERROR_CHARS]}"


def find_entry_point(name: str) -> EntryPoint:
    """Find the registered function with this name. LookupError unless there is exactly one."""
    found = list({point.value: point for point in entry_points(group="dfc.map", name=name)}.values())
    if len(found) != 1:
        raise LookupError(f"{len(found) or 'no'} entry points of the group 'dfc.map' are named {name!r} on this worker")
    return found[0]


def _readable(point: EntryPoint | None) -> list[str]:
    """The paths that Python and the user code are loaded from: installations, and packages elsewhere."""
    paths = {sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), *dfc.__path__}
    inside = tuple(os.path.join(prefix, "") for prefix in (sys.prefix, sys.base_prefix))
    spec = None if point is None else find_spec(point.module.partition(".")[0])
    if spec is not None:
        paths.update(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))
    return sorted(path for path in paths if path in (sys.prefix, sys.base_prefix) or not path.startswith(inside))


def _listable(point: EntryPoint | None) -> list[str]:
    """The directories of the user's package if it is not installed: Python lists them before it imports."""
    spec = None if point is None else find_spec(point.module.partition(".")[0])
    if spec is None:
        return []
    return [os.path.dirname(path) for path in (spec.submodule_search_locations or [spec.origin or ""]) if path]


# --- Functions.


def _function(point: EntryPoint, arguments: dict[str, Any]) -> Work:
    import numpy  # seeded even if only the function imports it; not at the top, because commands do not need it

    function = point.load()

    def work(call: Call) -> list[WireSample]:
        random.seed(call.seed)
        numpy.random.seed(call.seed & 0xFFFFFFFF)
        made = function({KEY_FIELD: call.sample.key, **call.sample.fields}, **arguments)
        return [_checked(sample) for sample in cast(Iterable[object], made)]

    return work


def _checked(sample: object) -> WireSample:
    if not isinstance(sample, Mapping) or not isinstance(sample.get(KEY_FIELD), str):
        raise UserCodeFailed(f"the function must return samples as dicts with {KEY_FIELD!r}, not {type(sample).__name__}")
    fields: dict[str, bytes] = {}
    for ext, data in sample.items():
        if isinstance(ext, str) and isinstance(data, (bytes, bytearray, memoryview)):
            fields[ext] = bytes(data)
        elif ext != KEY_FIELD:
            raise UserCodeFailed(f"field {ext!r} of a sample must be bytes, not {type(data).__name__}")
    return WireSample(sample[KEY_FIELD], fields)


# --- Commands.


def _commands(command: list[str], *, alone: bool) -> Work:
    program = shutil.which(command[0], path=_COMMAND_PATH)
    if program is None:
        raise LookupError(f"program {command[0]!r} not found on this worker")

    def work(call: Call) -> list[WireSample]:
        key = call.sample.key
        shutil.rmtree("work", ignore_errors=True)
        os.makedirs("work/out")
        for ext, data in call.sample.fields.items():
            with open(f"work/sample.{ext}", "xb") as file:
                file.write(data)
        filled = [argument.replace("{key}", key).replace("{seed}", str(call.seed)) for argument in command[1:]]
        with open("errors", "w+b") as errors:
            status = _run([program, *filled], errors.fileno(), alone=alone)
            if status:
                errors.seek(max(0, errors.seek(0, 2) - _ERROR_CHARS))
                said = errors.read().decode(errors="replace").strip()
                raise UserCodeFailed(f"the command exited with {status}{': ' if said else ''}{said}")
        return list(_collect(key))

    return work


def _run(command: list[str], errors: int, *, alone: bool) -> int:
    """Run a command and kill everything it started; return its exit status, negative for a signal."""
    process = subprocess.Popen(
        command, cwd="work", env={}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
    )
    try:
        return process.wait()
    finally:
        with suppress(ProcessLookupError):
            if alone:
                os.kill(-1, signal.SIGKILL)  # all processes in this namespace except the first
            else:
                os.killpg(process.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, 0)[0]:
                pass


def _collect(key: str) -> Iterable[WireSample]:
    """Read the samples in `out/`: files named like members, with `sample` at the start for the key of the input."""
    samples: dict[str, WireSample] = {}
    for count, path in enumerate(sorted(_files("work/out", ""))):
        if count >= _OUTPUTS_MAX:
            raise UserCodeFailed(f"the command left more than {_OUTPUTS_MAX} files in out/")
        parts = split_key(path)
        if parts is None:
            raise UserCodeFailed(f"out/{path[:80]} is not named like a field of a sample, such as out/sample.jpg")
        name, ext = parts
        if name.startswith("sample"):
            name = key + name.removeprefix("sample")
        sample = samples.setdefault(name, WireSample(name, {}))
        descriptor = os.open(f"work/out/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            sample.fields[ext] = file.read()
    return samples.values()


def _files(directory: str, prefix: str) -> Iterable[str]:
    for entry in os.scandir(directory):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            yield from _files(entry.path, f"{prefix}{entry.name}/")
        elif stat.S_ISREG(mode):
            yield prefix + entry.name
        else:
            raise UserCodeFailed(f"out/{prefix}{entry.name} is not a regular file")


if __name__ == "__main__":
    main()
