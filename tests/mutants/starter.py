"""Starts runs of pytest, each in a process of its own: importing takes longer than most of the tests that catch mutants.

`python -m mutants.starter` has imported what all of them stand on, but nothing of the server and its tests, and makes a copy of
itself for each run that it is asked for: a line of JSON on its input, for which it prints the exit code.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
VARIABLE: Final = "DFC_MUTANT"
STOOD_ON: Final = ("pytest", "hypothesis", "aiohttp", "msgspec", "numpy", "prometheus_client", "xxhash")
PLUGINS: Final = ("-p", "mutants.patching", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout", "-p", "no:cacheprovider")
HANG_S: Final = 120  # then a test has hung, which is not how a mistake should be noticed
# Compiled modules are kept, whatever the environment says, and no options meant for other runs count.
UNWANTED: Final = ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", VARIABLE)


class Ran(NamedTuple):
    """The exit code and the output of a run."""

    status: int
    output: str


class Starter:
    """The process, seen from outside. For one thread."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process = process
        self._output = directory / "output"

    def run(self, test: str, mutant: str | None) -> Ran:
        """Run a test with a mistake, or (None) as it is."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([test, mutant, str(self._output)]), file=self._process.stdin, flush=True)
        status = self._process.stdout.readline()
        assert status, "the starter has ended"
        return Ran(int(status), self._output.read_text(errors="replace"))


@contextmanager
def started(directory: Path) -> Iterator[Starter]:
    """A starter that ends with the context, and with it what it has started."""
    environment = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    environment |= {"PYTHONPATH": str(ROOT / "tests"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OPENBLAS_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "mutants.starter"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **pipes) as process:
        try:
            yield Starter(process, directory)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _run(test: str, mutant: str | None, output: str) -> int:
    """In the copy."""
    import pytest

    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if mutant is not None:
        os.environ[VARIABLE] = mutant
    # A place of its own: runs that share the common one remove each other's folders there, and stumble over that.
    # What a mistake has started may still write into it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        return int(pytest.main(["-q", *PLUGINS, f"--timeout={HANG_S}", f"--basetemp={base}/of-pytest", test]))


def main() -> None:
    for name in STOOD_ON:
        importlib.import_module(name)
    assert "dfc" not in sys.modules
    for line in sys.stdin:
        child = os.fork()
        if not child:
            status = 70
            try:
                status = _run(*json.loads(line))
                sys.stdout.flush()
            except BaseException:
                traceback.print_exc()  # into the output
                sys.stderr.flush()
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
