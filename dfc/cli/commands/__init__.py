"""The commands of `dfc`, one module per group."""
