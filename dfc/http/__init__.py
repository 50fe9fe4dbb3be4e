"""HTTP plumbing: the server, its middle layers, zero-copy transfers and the client for other nodes. No business rules."""
