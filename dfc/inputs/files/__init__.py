"""The inside of the `dfc://` filesystem."""
