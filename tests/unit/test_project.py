"""The files around the package agree with each other: lock file, exported requirements, compose file, Dockerfile, documents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dfc.addresses import KnownHosts
from dfc.config import SETTINGS
from dfc.limits import STOP_CANCEL_S, STOP_CLOSE_S, STOP_EXTRA_S, STOP_KILL_S
from dfc.supervisor import ServeOptions

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NAME = "dfc-datasets"  # `dfc` on PyPI is a stranger's
LOCK = tomllib.loads((ROOT / "uv.lock").read_text())
Pins = dict[tuple[str, str], frozenset[str]]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _locked(roots: list[dict[str, Any]]) -> Pins:
    """(name, version) -> hashes of everything that the lock file reaches from these dependencies."""
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in LOCK["package"]:
        packages.setdefault(package["name"], []).append(package)
    found: Pins = {}
    waiting = list(roots)
    while waiting:
        dependency = waiting.pop()
        for package in packages[dependency["name"]]:
            key = (package["name"], package["version"])
            if key in found or dependency.get("version", package["version"]) != package["version"]:
                continue
            files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
            found[key] = frozenset(file["hash"] for file in files)
            waiting += package.get("dependencies", [])
            for extra in dependency.get("extra", []):
                waiting += package.get("optional-dependencies", {}).get(extra, [])
    return found


def _exported(path: Path) -> Pins:
    """What a file of requirements names, with what the one names that it reads first."""
    pins: Pins = {}
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("-r "):
            pins |= _exported(path.parent / line[3:])
            continue
        match = re.match(r"([a-z0-9-]+)==(\S+)", line)
        assert match, f"not a pinned requirement: {line[:80]!r}"
        pins[match[1], match[2]] = frozenset(re.findall(r"--hash=(\S+)", line))
    return pins


def _own_package() -> dict[str, Any]:
    return next(package for package in LOCK["package"] if package["name"] == NAME)


GROUPS = ("run", "test", "full")


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_exported_requirements_are_in_step_with_the_lock_file(group: str) -> None:
    own = _own_package()
    roots = [*own["dependencies"], *(own["dev-dependencies"][group] if group else [])]
    file = f"requirements-{group}.txt" if group else "requirements.txt"
    assert _exported(ROOT / "deploy" / file) == _locked(roots), "run `make lock`"


def test_each_group_has_what_the_one_before_it_has() -> None:
    groups = PYPROJECT["dependency-groups"]
    assert tuple(groups) == GROUPS
    for group, before in zip(GROUPS[1:], GROUPS, strict=False):
        assert {"include-group": before} in groups[group]


def test_the_distribution_is_not_called_like_the_one_of_a_stranger() -> None:
    """Import and command are `dfc`; whoever says `pip install dfc` gets another program."""
    assert PYPROJECT["project"]["name"] == NAME
    assert PYPROJECT["project"]["scripts"]["dfc"] == "dfc.cli.main:main"
    assert PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["dfc"]
    for folder in ("dfc", "docs", "deploy", "examples", "loadtest"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".md", ".sh", "") and path.is_file():
                assert not re.search(r"pip install [^`\n]*\bdfc(?!-datasets)(?![/\w])", path.read_text(errors="replace")), path


def _declared() -> Iterator[tuple[str, list[str], list[dict[str, Any]]]]:
    metadata = _own_package()["metadata"]
    plain = [entry for entry in metadata["requires-dist"] if "extra ==" not in entry.get("marker", "")]
    yield "dependencies", PYPROJECT["project"]["dependencies"], plain
    for group in GROUPS:
        yield group, list(_grouped(group)), metadata["requires-dev"][group]


def _grouped(group: str) -> Iterator[str]:
    for entry in PYPROJECT["dependency-groups"][group]:
        if isinstance(entry, str):
            yield entry
        else:
            yield from _grouped(entry["include-group"])


def test_lock_file_is_in_step_with_the_project() -> None:
    for kind, declared, locked in _declared():
        wanted = {}
        for requirement in declared:
            match = re.match(r"([A-Za-z0-9_.-]+)\s*([^;]*)", requirement)
            assert match
            wanted[_normal(match[1])] = set(match[2].replace(" ", "").split(",")) - {""}
        found = {entry["name"]: set(entry.get("specifier", "").split(",")) - {""} for entry in locked}
        assert found == wanted, f"{kind}: run `make lock`"


def _pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def test_files_that_contributors_are_sent_to_exist() -> None:
    paths = re.findall(r"`((?:dfc|tests|deploy|docs)/[\w./]+)`|\*(tests/[^*]+)\*", (ROOT / "CONTRIBUTING.md").read_text())
    named = {path for single, several in paths for path in (single, *several.split(", ")) if path and "NAME" not in path}
    assert len(named) > 15
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md" and f"({page.name})" not in index]
    assert not missing, f"add to docs/README.md: {missing}"


def _services() -> dict[str, Any]:
    """Those of nodes: all but etcd."""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert "ports" not in services.pop("etcd"), "etcd has no password: only proxies may reach it"
    assert isinstance(services, dict)
    return services


def test_compose_file_has_two_proxies_and_four_targets_of_two_volumes_each() -> None:
    services = _services()
    assert sorted(services) == ["proxy", "proxy-2", *(f"target-{number}" for number in range(1, 5))]
    volumes = [volume.split(":")[0] for service in services.values() for volume in service["volumes"]]
    assert len(volumes) == len(set(volumes)) == 2 + 4 * 2
    ports = [service["ports"][0] for service in services.values()]
    assert len(set(ports)) == 6
    for name, service in services.items():
        assert service["command"][0] == name.split("-")[0]
        assert service["command"][1:] == ["--url", f"http://{name}:8080"]


def test_compose_file_sets_only_settings_that_exist() -> None:
    for name, service in _services().items():
        role = name.split("-")[0]
        for variable in service["environment"]:
            setting = SETTINGS[variable.removeprefix("DFC_").lower()]
            assert role in setting.roles, f"{name}: {variable}"


def test_compose_file_for_one_proxy_leaves_out_what_it_does_not_need() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose-one-proxy.yml").read_text())["services"]
    assert {name for name, service in services.items() if service.get("profiles")} == {"etcd", "proxy-2"}
    assert services["proxy"]["environment"] == {"DFC_ETCD_URLS": ""}
    assert not any("depends_on" in service and "etcd" in service["depends_on"] for service in _services().values())


def test_nodes_of_the_compose_file_answer_to_the_names_in_it() -> None:
    """Each by those of the others' settings, too: they call each other by them."""
    text = (ROOT / "docker-compose.yml").read_text()
    authorities = re.findall(r"https?://([^\s/\",]+)", re.sub(r"\$\{[A-Z0-9_]+:-([^}]*)\}", r"\1", text))
    assert {"proxy:8080", "target-4:8080", "localhost:8084"} <= set(authorities)
    for authority in authorities:
        KnownHosts(()).check(authority)


def test_image_is_built_without_privileges_and_secrets() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", dockerfile, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", dockerfile, re.MULTILINE)
    assert "TOKEN" not in dockerfile
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored, "only what is named reaches the engine"


# --- what `make setup` says while it downloads


def test_what_is_downloaded_is_told_beforehand() -> None:
    """By the sizes in the lock file: it must at least hold the largest file of it that fits, and not all that there are."""
    command = [sys.executable, "deploy/download-size", "deploy/requirements-full.txt"]
    packages, megabytes = map(int, subprocess.check_output(command, cwd=ROOT, text=True, timeout=60).split())
    exported = _exported(ROOT / "deploy" / "requirements-full.txt")
    assert len(exported) - 10 < packages <= len(exported)
    wheels = [file for package in LOCK["package"] for file in package.get("wheels", []) if package["name"] == "duckdb"]
    assert megabytes > max(wheel["size"] for wheel in wheels) / 1e6
    assert megabytes < sum(file["size"] for package in LOCK["package"] for file in package.get("wheels", [])) / 1e6 / 5


def test_the_demo_downloads_little() -> None:
    command = [sys.executable, "deploy/download-size", "deploy/requirements-run.txt"]
    assert int(subprocess.check_output(command, cwd=ROOT, text=True, timeout=60).split()[1]) <= 250


PIP = """#!/bin/sh
echo "Looking in indexes: http://index.example/simple"
echo "Collecting a==1"
echo "  Downloading a-1-py3-none-any.whl.metadata (2 kB)"
echo "  Downloading a-1-py3-none-any.whl (1.7 MB)"
echo "Processing /kept/b-2-py3-none-any.whl (from -r requirements.txt (line 1))"
echo "  Using cached c-3-py3-none-any.whl (3 MB)"
echo "ERROR: $1" >&2
echo "Installing collected packages: a, b"
exit "$2"
"""


@pytest.mark.parametrize("status", [0, 1])
def test_progress_of_an_installation(tmp_path: Path, status: int) -> None:
    """A line for each file; what pip said only when it failed, and then its failure counts."""
    pip = tmp_path / "pip"
    pip.write_text(PIP)
    pip.chmod(0o755)
    script = 'say() { echo "setup: $*" >&2; }; . deploy/progress; pip_with_progress 3 "$0" trouble "$1" || exit 7'
    done = subprocess.run(
        ["sh", "-euc", script, pip, str(status)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    lines = done.stderr.splitlines()
    assert lines[:5] == [
        "setup: Looking in indexes: http://index.example/simple",
        "setup: [1/3] a-1-py3-none-any.whl (1.7 MB)",
        "setup: [2/3] b-2-py3-none-any.whl",
        "setup: [3/3] c-3-py3-none-any.whl (3 MB) (kept from before)",
        "setup: unpacking 3 files",
    ]
    assert done.returncode == 7 * status
    assert ("ERROR: trouble" in lines) == bool(status)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pip"]


def _stop_seconds() -> Iterator[tuple[str, float]]:
    """Everything shipped that kills a node some time after SIGTERM."""
    for unit in ("dfc-proxy.service", "dfc-target.service"):
        found = re.search(r"^TimeoutStopSec=(\d+)$", (ROOT / "deploy" / "systemd" / unit).read_text(), re.MULTILINE)
        assert found, unit
        yield unit, float(found[1])
    for name, service in _services().items():
        yield name, float(service["stop_grace_period"].removesuffix("s"))
    yield "dfc serve", ServeOptions("x").drain_timeout_s + STOP_KILL_S


@pytest.mark.parametrize(("name", "seconds"), list(_stop_seconds()))
def test_supervisors_kill_after_a_node_has_ended_by_itself(name: str, seconds: float) -> None:
    steps = STOP_CANCEL_S + 3.5 * STOP_CLOSE_S  # requests, threads, disks
    assert steps < STOP_EXTRA_S < STOP_KILL_S
    assert seconds >= SETTINGS["drain_timeout_s"].default + STOP_KILL_S
