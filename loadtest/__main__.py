"""`python -m loadtest --url URL`: run scenarios against a DFC node, print a table, write JSON.

The exit code is 0 if every operation succeeded, 1 if one failed, 2 for a wrong command line or an unreachable server.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console

from loadtest.addresses import Address, AddressError, parse_base_url
from loadtest.connection import Connection, HttpFailure
from loadtest.processes import interruptible
from loadtest.report import ScenarioResult, print_results, write_json
from loadtest.runner import Limits, run_scenario
from loadtest.scenarios import SCENARIOS, Sizes, create_bucket, remove_bucket

CONNECTIONS_MAX = 256
SECONDS_MAX = 3600.0
DEFAULTS = Sizes()


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest", description="Run load scenarios against a DFC node, checking every byte."
    )
    parser.add_argument("--url", required=True, help="base URL of any node, http://HOST:PORT")
    parser.add_argument(
        "--scenario", default="put,get,range,sample,small,list", help=f"scenarios to run, of {','.join(SCENARIOS)}"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="maximum duration of each scenario (default: 5)")
    parser.add_argument("--count", type=int, default=100_000, help="maximum operations of each scenario (default: 100,000)")
    parser.add_argument("--connections", type=int, default=4, help="parallel connections, one thread each (default: 4)")
    parser.add_argument("--size", type=int, default=DEFAULTS.object_bytes, help="bytes of a large object (default: 16 MiB)")
    parser.add_argument("--objects", type=int, default=DEFAULTS.objects, help="large objects of the get scenario (default: 8)")
    parser.add_argument(
        "--small-objects", type=int, default=DEFAULTS.small_objects, help="small objects to read and list (default: 500)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON to FILE ('-' for standard output)")
    parser.add_argument("--token", default=os.environ.get("DFC_TOKEN"), help="bearer token (default: DFC_TOKEN)")
    parser.add_argument("--allow-remote", action="store_true", help="allow a server on another machine")
    arguments = parser.parse_args(argv)
    _check_arguments(parser, arguments)
    return arguments


def _check_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    arguments.scenario = [name for name in arguments.scenario.split(",") if name]
    unknown = [name for name in arguments.scenario if name not in SCENARIOS]
    if unknown or not arguments.scenario:
        parser.error(f"no such scenario: {', '.join(unknown) or '(none)'}; choose from {', '.join(SCENARIOS)}")
    if not 1 <= arguments.connections <= CONNECTIONS_MAX:
        parser.error(f"--connections must be 1 to {CONNECTIONS_MAX}, not {arguments.connections}")
    if not 0 < arguments.seconds <= SECONDS_MAX:
        parser.error(f"--seconds must be more than 0 and at most {SECONDS_MAX:.0f}, not {arguments.seconds:g}")
    if min(arguments.count, arguments.size, arguments.objects, arguments.small_objects) < 1:
        parser.error("--count, --size, --objects and --small-objects must be at least 1")
    try:
        arguments.address = parse_base_url(arguments.url, allow_remote=arguments.allow_remote)
    except AddressError as error:
        parser.error(str(error))


def run(arguments: argparse.Namespace, console: Console) -> list[ScenarioResult]:
    """Run the scenarios in a new bucket, which is removed afterwards, even after a failure."""
    address: Address = arguments.address
    sizes = Sizes(object_bytes=arguments.size, objects=arguments.objects, small_objects=arguments.small_objects)
    bucket = f"loadtest-{secrets.token_hex(4)}"

    def connect() -> Connection:
        return Connection(address, token=arguments.token)

    control = connect()
    create_bucket(control, bucket)
    results = []
    try:
        for name in arguments.scenario:
            console.print(f"{name} …", style="dim")
            limits = Limits(arguments.seconds, arguments.count)
            scenario = SCENARIOS[name](bucket, sizes)
            results.append(run_scenario(scenario, connect, connections=arguments.connections, limits=limits))
    finally:
        remove_bucket(control, bucket)
        control.close()
    return results


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    console = Console(stderr=arguments.json == "-", width=None if sys.stdout.isatty() else 120)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    interruptible()
    try:
        results = run(arguments, console)
    except (OSError, HttpFailure) as error:
        print(f"loadtest: {arguments.address.url}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("loadtest: interrupted; the bucket of the run was removed", file=sys.stderr)
        return 130
    print_results(results, arguments.address.url, console)
    if arguments.json:
        document = {
            "url": arguments.address.url,
            "started": started,
            "scenarios": [result.as_json() for result in results],
        }
        write_json(arguments.json, document)
    return 1 if any(result.errors for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
