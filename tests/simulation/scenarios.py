"""The scenarios of the suite, and how many seeds it runs of each."""

from __future__ import annotations

from simulation.run import Scenario

SCENARIOS = {
    "two copies": Scenario(copies=2),
    "three copies": Scenario(copies=3),
    "one copy": Scenario(copies=1),
    "no moves": Scenario(copies=2, moves=False),
    "wipes": Scenario(copies=2, moves=False, wipes=True),
    "wipes and moves": Scenario(copies=3, wipes=True),
    "copies change": Scenario(copies=2, changes_copies=True),
    "late messages": Scenario(copies=3, moves=False, late=True),
    "late moves": Scenario(copies=2, late=True),
    "leaving": Scenario(copies=2, leaves=True),
    "slow rows": Scenario(copies=3, nodes=5, disks=1, moves=False, slow_rows=True),
    "slow rows and moves": Scenario(copies=2, slow_rows=True),
    "power": Scenario(copies=2, nodes=3, disks=1, moves=False, power="one"),
    "power and moves": Scenario(copies=3, power="one"),
    "power of all": Scenario(copies=2, nodes=4, disks=1, moves=False, power="all"),
    "power of two": Scenario(copies=2, nodes=2, disks=1, moves=False, power="all"),
    "losses": Scenario(copies=2, faults=False, moves=False, losses=True, purges=True),
    "losses of one copy": Scenario(copies=1, faults=False, moves=False, losses=True, purges=True),
    "losses of one copy and moves": Scenario(copies=1, nodes=4, faults=False, losses=True, purges=True),
    "losses and faults": Scenario(copies=3, nodes=5, disks=1, moves=False, losses=True),
    "losses and moves": Scenario(copies=2, nodes=5, losses=True),
    "losses and changes": Scenario(copies=2, nodes=4, disks=1, losses=True, changes_copies=True),
    "losses for good": Scenario(copies=2, nodes=5, disks=1, losses=True, for_good=True),
    "removals": Scenario(copies=2, nodes=5, faults=False, losses=True, removes=True, purges=True),
    "removals and faults": Scenario(copies=3, nodes=5, losses=True, removes=True),
    "jobs": Scenario(copies=2, nodes=3, disks=1, moves=False, jobs=True),
    "jobs of three copies": Scenario(copies=3, moves=False, leaves=True, jobs=True),
    "jobs and late messages": Scenario(copies=2, moves=False, late=True, jobs=True),
    "jobs and wipes": Scenario(copies=2, nodes=3, disks=1, moves=False, wipes=True, jobs=True),
    "jobs that are taken over": Scenario(copies=2, nodes=3, disks=1, moves=False, jobs=True, takeovers=True),
    "jobs that are taken over late": Scenario(copies=2, moves=False, late=True, jobs=True, takeovers=True),
    "relays that stop": Scenario(copies=2, nodes=3, disks=1, moves=False, relays=2),
    "relays that stop and moves": Scenario(copies=2, relays=2),
    "single disks": Scenario(copies=3, nodes=5, disks=1),
}
SEEDS_EACH = 30
