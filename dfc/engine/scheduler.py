"""`dfc scheduler`: runs the Dask scheduler for a cluster's jobs. It has no state of its own: after a restart, workers and
client reconnect within seconds, and tasks that were running are run again."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from dfc.config import COORDINATOR, load_settings
from dfc.engine.environment import SchedulerAddress, dask_environment, security
from dfc.errors import ConfigError, DfcError

EXIT_OPERATOR_ERROR: Final = 2


def parse(arguments: Sequence[str]) -> SchedulerAddress:
    """Read the address to listen on from flags, variables and file, like a proxy. ConfigError if they are wrong."""
    parser = argparse.ArgumentParser(prog="dfc scheduler", description="Run the Dask scheduler for jobs.", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", default=os.environ.get("DFC_CONFIG"), help="TOML file with settings")
    for name in ("jobs-scheduler", "jobs-tls-ca", "jobs-tls-cert", "jobs-tls-key"):
        parser.add_argument(f"--{name}", metavar="VALUE", help=f"the setting {name.replace('-', '_')}")
    flags = vars(parser.parse_args(arguments))
    settings = load_settings("proxy", file=flags.pop("config"), environment=os.environ, flags=flags).settings
    if not settings.jobs_scheduler:
        raise ConfigError("set jobs_scheduler to the address to listen on: tls://HOST:PORT, or tcp://127.0.0.1:PORT")
    if settings.jobs_scheduler == COORDINATOR:
        raise ConfigError("with jobs_scheduler = coordinator a proxy runs it: nobody has to start one")
    return SchedulerAddress.of(settings)


async def serve(address: SchedulerAddress, scratch: str) -> NoReturn:
    """Run until a signal, then end the process at once: workers and clients see closed connections, as after a crash."""
    from distributed import Scheduler

    scheduler: Any = Scheduler(
        host=f"{address.scheme}://{address.host}",
        port=address.port,
        security=security(address),
        dashboard=False,
        dashboard_address="127.0.0.1:0",
    )
    await scheduler
    shutil.rmtree(scratch, ignore_errors=True)  # for files uploaded by Dask clients; ours uploads none
    print(f"The scheduler of jobs listens at {scheduler.address}", flush=True)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await stopping.wait()
    os._exit(0)


def main(arguments: Sequence[str]) -> int:
    """Run the scheduler and return the exit status."""
    try:
        address = parse(arguments)
        os.environ.update(dask_environment(os.environ))
        logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
        scratch = os.environ["DASK_TEMPORARY_DIRECTORY"] = tempfile.mkdtemp(prefix="dfc-scheduler-")
        asyncio.run(serve(address, scratch))
    except (DfcError, OSError) as error:
        print(f"dfc scheduler: {error}", file=sys.stderr)
    return EXIT_OPERATOR_ERROR


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
