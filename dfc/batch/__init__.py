"""Batch reads: many items from anywhere in the cluster, answered as one tar."""
