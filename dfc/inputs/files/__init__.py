"""Internals of the `dfc://` filesystem: paths, reading and members of shards."""
