"""The `dfc` and `tarshards` commands."""
