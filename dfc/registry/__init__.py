"""Registries: where the cluster map is kept and agreed upon, and who may act alone."""
