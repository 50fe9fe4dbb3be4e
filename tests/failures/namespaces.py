"""Links between nodes that have addresses of their own: a network namespace for each, and one with a bridge between them.

This process moves to the one in the middle, which has no way out of the machine, so that clients reach every node whatever is
cut between the nodes. Bad links are rules of iptables where packets come in; a slow one loses some of them. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from failures.links import Link, LinkState
from failures.nodes import PROXY

_NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET
_libc: Final = ctypes.CDLL(None, use_errno=True)
_BRIDGE: Final = "dfc0"
_OWN: Final = "10.99.0.1"
_TOOLS: Final = ("ip", "iptables")
_VERDICTS: Final[dict[LinkState, tuple[str, ...]]] = {
    "slow": ("-m", "statistic", "--mode", "random", "--probability", "0.25", "-j", "DROP"),
    "held": ("-j", "DROP"),
    "refused": ("-j", "REJECT", "--reject-with", "tcp-reset"),
}


def why_not() -> str:
    """Why there can be no such network here; empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not found"
    try:
        Namespaces([PROXY]).close()
    except OSError as error:
        return str(error)
    return ""


class Namespaces:
    """A network of nodes with these names, as `Nodes` wants it, that has bad links. To be made and closed by the main thread,
    before others begin."""

    kind = "network namespaces"

    def __init__(self, names: Sequence[str]) -> None:
        assert threading.current_thread() is threading.main_thread()
        self._hosts = {name: f"10.99.0.{number}" for number, name in enumerate(names, 10)}
        self._spaces = {name: f"dfc-{os.getpid()}-{name}" for name in names}
        self._rules: dict[Link, list[str]] = {}
        self._before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call(_libc.unshare(_NEW_NETWORK))
            self._build(names)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Go back. Nodes have ended by then."""
        for space in self._spaces.values():
            with suppress(OSError):
                _run("ip", "netns", "delete", space)
        _call(_libc.setns(self._before, _NEW_NETWORK))
        os.close(self._before)

    def _build(self, names: Sequence[str]) -> None:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        _run("ip", "address", "add", f"{_OWN}/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        for number, name in enumerate(names):
            space, port = self._spaces[name], f"port{number}"
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", port, "master", _BRIDGE, "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "address", "add", f"{self._hosts[name]}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")

    def host_of(self, name: str) -> str:
        return self._hosts[name]

    def url_for_nodes(self, name: str, port: int) -> str:
        return f"http://{self._hosts[name]}:{port}"

    def command(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self._spaces[name]]

    def started(self, name: str, pid: int) -> None:
        pass

    def set(self, links: dict[Link, LinkState | None]) -> None:
        """Change the states of links; None: whole again."""
        for link, state in links.items():
            self._undo(link)
            if state is not None:
                self._do(link, state)

    def _do(self, link: Link, state: LinkState) -> None:
        of, to = link
        rule = ["INPUT", "-p", "tcp", "-s", self._hosts[of], *_VERDICTS[state]]
        self._inside(to, "iptables", "-w", "-A", *rule)
        self._rules[link] = [to, "iptables", "-w", "-D", *rule]

    def _undo(self, link: Link) -> None:
        rule = self._rules.pop(link, None)
        if rule is not None:
            self._inside(*rule)

    def _inside(self, name: str, *command: str) -> None:
        _run("ip", "netns", "exec", self._spaces[name], *command)


def _call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(*command: str) -> None:
    """OSError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
