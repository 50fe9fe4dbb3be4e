"""Copies of objects, as pure cores without I/O: who may write when, what every copy must have, which disk lacks what.

A core is told what happened and says what to do. Nodes carry that out, and so does the simulation in `tests/simulation`, with
messages that are lost, delayed and reordered. All rules of the protocol are here (docs/decisions/0027-replication.md).
"""
