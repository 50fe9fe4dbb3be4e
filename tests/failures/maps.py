"""The maps that nodes show while a cluster changes: no two of one version."""

from __future__ import annotations

import threading
from typing import Any, Final

import httpx
import msgspec

from dfc.placement.map import DiskEntry
from dfc.registry.messages import use_of

LOOK_S: Final = 0.1
# Of the last heartbeat; nodes are told them beside the map.
_USE: Final = use_of(DiskEntry(id="any", weight=1.0)).keys()


class MapWatch(threading.Thread):
    """Asks every node for its map, again and again."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__(name="maps", daemon=True)
        self._urls = urls
        self.stopping = threading.Event()
        self.by_version: dict[int, bytes] = {}
        self.looks = 0
        self.problems: list[str] = []

    def run(self) -> None:
        with httpx.Client(timeout=2.0, verify=False) as http:
            while not self.stopping.wait(LOOK_S):
                for url in self._urls:
                    try:
                        answer = http.get(f"{url}/v1/cluster")
                    except httpx.HTTPError:
                        continue
                    if answer.status_code == 200:
                        self._note(url, answer.json())

    def _note(self, url: str, shown: dict[str, Any]) -> None:
        content = msgspec.json.encode(_without_use(shown), order="sorted")
        self.looks += 1
        known = self.by_version.setdefault(shown["version"], content)
        if known != content:
            self.problems.append(f"two maps of version {shown['version']}, one at {url}: {known!r} and {content!r}")


def _without_use(shown: dict[str, Any]) -> dict[str, Any]:
    nodes = []
    for node in shown["nodes"]:
        disks = [{key: value for key, value in disk.items() if key not in _USE} for disk in node["disks"]]
        nodes.append({**node, "last_heartbeat": "", "disks": disks})
    return {**shown, "nodes": nodes}
