"""Uploads of shards: archives, destinations, and storing each shard whole or not at all."""
