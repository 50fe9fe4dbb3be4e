"""What a run came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from failures.nodes import Nodes


@dataclass
class Found:
    """What a run came to. `problems` is empty for a good one."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"  {name}: {count}" for name, count in sorted(self.counts.items())]
        return "\n".join((*lines, f"  problems: {len(self.problems)}", *(f"    {each}" for each in self.problems[:20])))


@contextmanager
def looked_into(nodes: Nodes, found: Found) -> Iterator[None]:
    """Stop the nodes at the end, whatever happens. An AssertionError is a problem."""
    try:
        yield
        nodes.stop_all()
    except AssertionError as error:
        found.problems.append(str(error))
    finally:
        nodes.kill_all()
