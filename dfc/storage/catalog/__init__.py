"""The catalog of a disk: its rows, and the changes that are committed to them."""
