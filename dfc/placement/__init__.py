"""Placement of objects on disks: the cluster map and rendezvous hashing. No I/O."""
