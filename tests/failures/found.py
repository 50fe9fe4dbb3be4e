"""What a run came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Found:
    """What a run came to. `problems` is empty for a good one."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        lines = [f"  {name}: {count}" for name, count in sorted(self.counts.items())]
        return "\n".join((*lines, f"  problems: {len(self.problems)}", *(f"    {each}" for each in self.problems[:20])))
