"""Copies at a target: writes to other disks, rows from them, peering after a step, and what brings disks up to date.

The rules are those of `dfc.replication`; the modules here carry them out.
"""
