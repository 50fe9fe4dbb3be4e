"""The catalog of a disk: its rows, and the changes committed to them."""
