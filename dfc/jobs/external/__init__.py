"""Tables that may be larger than memory: partitioned records, sorted keys, duplicate keys."""
