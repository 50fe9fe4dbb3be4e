"""Where bytes of shards come from: specs, URLs, and streams that go on where a connection broke."""
