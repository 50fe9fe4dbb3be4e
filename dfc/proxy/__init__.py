"""The use cases of a proxy: owners of objects, buckets, listings, batch reads, heartbeats and the coordinator's duties."""
