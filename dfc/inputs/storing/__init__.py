"""Shards on their way out: what may be written, where it goes, how it is stored whole."""
