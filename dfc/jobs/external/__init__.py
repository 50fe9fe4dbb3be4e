"""Tables larger than memory: records by partition, sorted keys, keys that come more than once."""
