"""Batch reads at a target: find the items, then read their bytes."""
