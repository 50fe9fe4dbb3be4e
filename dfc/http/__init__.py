"""HTTP plumbing: the server, its middle layers, zero-copy transfers. No business rules."""
