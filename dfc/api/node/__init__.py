"""The face `/v1/node` for calls between the nodes and workers of a cluster."""
