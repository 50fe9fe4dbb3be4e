"""What a task on a worker sees of the cluster: shards to read, outputs to write, a share of the machine."""
