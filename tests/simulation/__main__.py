"""`python -m simulation FIRST LAST [SCENARIO …]`, in `tests/`: run seeds by hand. A seed that fails is one of each scenario."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from simulation.run import Run
from simulation.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="the seed after the last one")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"all by default: {', '.join(SCENARIOS)}")
    given = parser.parse_args()
    if unknown := set(given.scenarios) - SCENARIOS.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    names = given.scenarios or list(SCENARIOS)
    begin, bad, counts = time.monotonic(), 0, Counter[str]()
    for seed in range(given.first, given.last):
        for name in names:
            outcome = Run(seed, SCENARIOS[name]).go()
            counts.update(outcome.counts)
            if outcome.problems:
                bad += 1
                print(f"{name} {seed}: {'; '.join(outcome.problems[:4])}", flush=True)
    total = (given.last - given.first) * len(names)
    print(f"{total} runs, {bad} bad, {time.monotonic() - begin:.1f} s, {dict(counts)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
