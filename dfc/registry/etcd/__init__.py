"""The registry of clusters with many proxies, in etcd."""
