"""`python -m dfc.engine.nannies`: the process of the Dask workers beside a target. Started by `dfc.engine.link`.

Each worker has a nanny. They are named `NODE/0`, `NODE/1`, …, which tells the dispatcher whose disks they can read.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, Final, NoReturn

from dfc.engine.environment import (
    Begin,
    end_group,
    make_scratch,
    read_begin,
    read_frame,
    security,
    start_fork_server,
    take_pipes,
)

_log: Final = logging.getLogger("dfc.engine")
CONNECT_S: Final = 30  # for one worker to connect; after that all are restarted
START_S: Final = 60.0  # for all workers; if the scheduler dies at the wrong moment, they would wait for it forever
LOOK_S: Final = 1.0
LOOK_TIMEOUT_S: Final = 10.0
LOOKS_FAILED_MAX: Final = 3


async def run(begin: Begin, scratch: str) -> None:
    """Run the workers until one of the nannies ends, which happens when the scheduler is gone."""
    start_fork_server(scratch)
    from distributed import Nanny

    assert begin.scheduler is not None
    nannies = [
        Nanny(
            begin.scheduler.address,
            nthreads=1,
            name=f"{begin.name}/{number}",
            host=begin.host or None,
            security=security(begin.scheduler),
            memory_limit=0,
            local_directory=scratch,
            death_timeout=CONNECT_S,
            dashboard=False,
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.ERROR,
        )
        for number in range(begin.workers)
    ]
    starting = asyncio.gather(*nannies)
    # Not `wait_for`, which would wait for the cancelled tasks: the whole process ends after this.
    if not (await asyncio.wait((starting,), timeout=START_S))[0]:
        raise TimeoutError(f"the workers did not start within {START_S:.0f} s")
    starting.result()
    ends = [asyncio.ensure_future(nanny.finished()) for nanny in nannies]
    await asyncio.wait([*ends, asyncio.create_task(_watch(nannies[0].scheduler))], return_when=asyncio.FIRST_COMPLETED)


async def _watch(scheduler: Any) -> None:
    """Return when the scheduler no longer answers or was restarted. A busy worker would notice only after its task."""
    known = None
    failed = 0
    while failed < LOOKS_FAILED_MAX:
        try:
            found = await asyncio.wait_for(scheduler.identity(n_workers=0), LOOK_TIMEOUT_S)
            known, failed = known or found["id"], 0
            if found["id"] != known:
                return
        except (OSError, TimeoutError):
            failed += 1
        await asyncio.sleep(LOOK_S)


async def main(input_pipe: int) -> NoReturn:
    """Run the workers, then end the process."""
    begin, reader = await read_begin(input_pipe)
    scratch = make_scratch(begin.directory)
    try:
        running = asyncio.create_task(run(begin, scratch))
        gone = asyncio.create_task(read_frame(reader))
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            _log.warning("lost the Dask scheduler; the workers end")
    except Exception:
        _log.exception("the workers failed")
    finally:
        end_group(scratch)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main(take_pipes()[0]))
