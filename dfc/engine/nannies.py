"""`python -m dfc.engine.nannies`: Dask workers beside a target, each with a nanny. Started by `dfc.engine.beside`.

They are named `NODE/0`, `NODE/1`, …, by which the dispatcher knows whose disks they read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any, Final, NoReturn

from dfc.engine.environment import end_group, make_scratch, security, start_fork_server, take_pipes
from dfc.engine.wire import TO_ENGINE, Begin, read_frame

_log: Final = logging.getLogger("dfc.engine")
CONNECT_S: Final = 30  # for a worker that comes up; then all begin anew
START_S: Final = 60.0  # for all of them; a scheduler that dies at the wrong moment would be waited for without an end
LOOK_S: Final = 1.0
LOOK_TIMEOUT_S: Final = 10.0
LOOKS_FAILED_MAX: Final = 3


async def run(begin: Begin, scratch: str) -> None:
    """Until one of the nannies has ended, which it does when the scheduler is gone."""
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
    # Not `wait_for`, which waits for what it has cancelled: the process, and all in it, ends after this.
    if not (await asyncio.wait((starting,), timeout=START_S))[0]:
        raise TimeoutError(f"the workers have not started in {START_S:.0f} s")
    starting.result()
    ends = [asyncio.ensure_future(nanny.finished()) for nanny in nannies]
    await asyncio.wait([*ends, asyncio.create_task(_watch(nannies[0].scheduler))], return_when=asyncio.FIRST_COMPLETED)


async def _watch(scheduler: Any) -> None:
    """Return when the scheduler does not answer, or is another one: a worker whose task runs on would wait for its end."""
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
    """Ends the process, too."""
    reader = asyncio.StreamReader()
    pipe = os.fdopen(input_pipe, "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    begun = await read_frame(reader)
    if begun is None:
        sys.exit(0)
    begin = TO_ENGINE.decode(begun)
    assert isinstance(begin, Begin)
    scratch = make_scratch(begin.directory)
    try:
        running = asyncio.create_task(run(begin, scratch))
        gone = asyncio.create_task(read_frame(reader))
        await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
            _log.warning("the scheduler is gone")
    except Exception:
        _log.exception("the workers end")
    finally:
        end_group(scratch)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main(take_pipes()[0]))
