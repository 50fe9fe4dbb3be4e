"""Registries: store the cluster map, change it in one order for all, and grant leases."""
