"""The index of a shard: built while the shard is uploaded; read by name, by sample or in columns."""
