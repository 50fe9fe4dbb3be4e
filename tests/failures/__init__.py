"""Clusters of real processes that are killed, paused and cut off, and what must hold of them afterwards.

`python -m failures kills --seconds 1200` and others run by hand; the suite runs a short form of each.
"""
