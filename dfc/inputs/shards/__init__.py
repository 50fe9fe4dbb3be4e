"""Turn the bytes of shards into undecoded samples: read ahead, decompress, parse."""
