"""`python -m failures WHAT`, in `tests/`: the long runs, by hand. It prints what was found, with the seed."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from failures import kills


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m failures", description=__doc__)
    parser.add_argument("what", choices=("kills",))
    parser.add_argument("--seconds", type=float, default=1200.0, help="how long nodes are killed (default: 1200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="where the cluster is (default: a temporary directory)")
    given = parser.parse_args()
    directory = given.dir or Path(tempfile.mkdtemp(prefix="dfc-failures-"))
    found = kills.run(directory, kills.Plan(seconds=given.seconds, copies=given.copies), given.seed)
    print(f"{given.what}, seed {given.seed}, in {directory}:\n{found}")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
