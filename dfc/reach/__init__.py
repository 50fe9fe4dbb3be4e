"""Access to the cluster from any thread: the map and the owners, retried requests, resumed reads, batch reads."""
