"""The face that nodes and workers of a cluster have for each other."""
