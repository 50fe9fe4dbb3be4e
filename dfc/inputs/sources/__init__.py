"""Sources of shards: specs, URLs, and streams that resume where a connection broke."""
