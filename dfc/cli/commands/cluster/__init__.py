"""`dfc cluster`, `dfc scrub` and `dfc disk`."""
