"""The index of a shard: built while the shard arrives; read by name, by sample or in columns."""
