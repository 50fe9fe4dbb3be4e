"""A target's part of a batch read: items found, then their bytes."""
