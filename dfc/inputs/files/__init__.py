"""The inside of the filesystem `dfc://`."""
