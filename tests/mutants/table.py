"""All mistakes, by name."""

from __future__ import annotations

from typing import Final

from mutants import comparing, disks, lost, proxies, rights, targets
from mutants.mutant import Mutant

GROUPS: Final = (
    disks.MEDIUM,
    disks.BLOBS,
    disks.ROWS,
    targets.WRITES,
    lost.LOST,
    comparing.COMPARING,
    proxies.PROXIES,
    targets.READS,
    rights.RIGHTS,
    rights.COORDINATOR,
    targets.UPKEEP,
)
MUTANTS: Final[dict[str, Mutant]] = {
    name: each._replace(module=module)
    for group in GROUPS
    for module, mutants in group.items()
    for name, each in mutants.items()
}
