"""Uploading shards: what may be written, where it goes, and how each shard is stored whole or not at all."""
