"""From the bytes of shards to undecoded samples: read ahead, decompressed, parsed."""
