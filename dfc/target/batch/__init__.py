"""A target's part of a batch read: finding the items, then reading their bytes."""
