"""Copies compared with those of other targets: digests of all rows, names where they differ, and what is done then."""
