"""Requests to other nodes: connections, bytes out and in, retries, and errors read back."""
