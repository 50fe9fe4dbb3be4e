"""HTTP for nodes: the server, routing, access control, answers, relays and zero-copy transfers. No business rules."""
