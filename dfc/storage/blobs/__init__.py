"""Blob files: writing, reading, adopting and discarding them."""
