"""What is larger than memory: records by partition, sorted keys, keys that come twice."""
