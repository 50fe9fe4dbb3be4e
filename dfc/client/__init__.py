"""The Python client, sync and async."""
