"""The files that hold the bytes: written, read, adopted, discarded."""
