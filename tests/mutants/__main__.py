"""`python -m mutants NAME …`, in `tests/`: make these mistakes, or all, one after the other, and print how their tests end."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mutants.patching import ending, is_caught
from mutants.starter import started
from mutants.table import MUTANTS


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as directory, started(Path(directory)) as starter:
        for name in sys.argv[1:] or MUTANTS:
            ran = starter.run(MUTANTS[name].test, name)
            caught = is_caught(MUTANTS[name], ran)
            missed += not caught
            print(f"{'caught' if caught else 'MISSED'}: {name}: {ending(ran.output)}", flush=True)
            if not caught:
                print(ran.output, flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
