"""Batch reads: many items from anywhere in the cluster as one tar, asked for, merged and answered."""
