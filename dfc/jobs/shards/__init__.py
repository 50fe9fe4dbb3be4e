"""Reads the samples of shards, and writes outputs in every format, for tasks."""
