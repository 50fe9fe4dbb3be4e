"""What the catalog of a disk holds, and how it changes: the only way to an object is a committed row."""
