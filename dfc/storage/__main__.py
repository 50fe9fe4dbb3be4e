"""`python -m dfc.storage COMMAND DIR`: what is done to a disk that no target is using. `dfc disk` runs it.

Exit codes: 0 sound, 1 damage found, 2 the disk cannot be examined (wrong directory, in use, bad arguments).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from dfc.errors import DfcError
from dfc.filesystem import FileSystem
from dfc.storage.identity import accept, format_disk, give_to_node
from dfc.storage.upkeep.check import CheckReport, check
from dfc.storage.upkeep.rebuild import RebuildReport, rebuild

Report = TypeVar("Report", CheckReport, RebuildReport)
SOUND, DAMAGED, REFUSED = 0, 1, 2
_DIRECTORY: Final = "the disk's directory, the one with dfc-disk.json"


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(prog="dfc disk", description="Check or repair a disk that no target is using.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, about in (
        ("check", "report every inconsistency; changes nothing"),
        ("rebuild", "rebuild the catalog from the blobs; keeps the old catalog under another name"),
    ):
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument("directory", help=_DIRECTORY)
        command.add_argument("--full", action="store_true", help="also read every object and verify its checksum")
        command.add_argument("--json", action="store_true", help="print one JSON object")
    about = "accept that a disk which was put back to an earlier state, or whose log was torn, has lost objects"
    commands.add_parser("accept", help=about, description=about).add_argument("directory", help=_DIRECTORY)
    about = "release the disk from its node; the next target that is configured with it takes it over"
    commands.add_parser("release", help=about, description=about).add_argument("directory", help=_DIRECTORY)
    about = "make a directory the empty disk with an id that another one had"
    command = commands.add_parser("format", help=about, description=about)
    command.add_argument("directory", help="an empty directory, or one to be made")
    command.add_argument("--cluster", required=True, help="the id of the cluster")
    command.add_argument("--disk", required=True, help="the id of the disk")
    options = parser.parse_args(arguments)
    try:
        if options.command == "check":
            checked = check(options.directory, full=options.full)
            return _told(checked, _print_check, as_json=options.json)
        if options.command == "accept":
            return _accept(options.directory)
        if options.command == "release":
            return _release(options.directory)
        if options.command == "format":
            return _format(options.directory, options.cluster, options.disk)
        rebuilt = rebuild(options.directory, full=options.full, say=lambda text: print(text, file=sys.stderr))
        return _told(rebuilt, _print_rebuild, as_json=options.json)
    except DfcError as error:
        print(error.message, file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"{options.directory}: {error}", file=sys.stderr)
        return REFUSED


def _accept(directory: str) -> int:
    has_lost = accept(directory, FileSystem())
    said = "what it has lost is accepted" if has_lost else "it has lost nothing, as far as is known: there is nothing to accept"
    print(f"{directory}: {said}")
    return SOUND


def _release(directory: str) -> int:
    owner = give_to_node(directory, "", FileSystem())
    whose = f"belonged to {owner}" if owner else "belonged to no node"
    print(f"{directory} {whose}; the next target that is configured with it takes it over")
    return SOUND


def _format(directory: str, cluster_id: str, disk_id: str) -> int:
    # It belongs to no node, so the one that is configured with it takes it.
    format_disk(os.path.abspath(directory), cluster_id, disk_id, FileSystem(), "")
    return SOUND


def _told(report: Report, print_it: Callable[[Report], None], *, as_json: bool) -> int:
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        print_it(report)
    return DAMAGED if report.damaged else SOUND


def _print_check(report: CheckReport) -> None:
    for problem in report.problems:
        where = problem.path or f"{problem.bucket_id}/{problem.name}"
        print(f"{problem.kind}: {where}: {problem.detail}")
    how = "every byte read" if report.full else "footers read; --full reads every byte"
    print(f"disk {report.disk_id}: {report.objects} objects, {report.bytes} bytes ({how})")
    if report.staged:
        print(f"{report.staged} blobs staged by jobs")
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(report.counts.items()))
    print(f"{found or 'no problems'}; {report.orphans} files in orphans/, {report.damaged_files} in damaged/")


def _print_rebuild(report: RebuildReport) -> None:
    print(f"disk {report.disk_id}: a new catalog with {report.objects} objects, {report.bytes} bytes")
    print(f"{report.older_versions} older versions and {report.deleted} deleted blobs left for the sweep to remove")
    if report.staged:
        print(f"{report.staged} blobs stay staged for their jobs")
    for path in report.damaged:
        print(f"damaged: {path}")
    if report.old_catalog:
        print(f"the old catalog is kept as {report.old_catalog}")


if __name__ == "__main__":
    sys.exit(main())
