"""The proxy node: redirects, relays, cluster-wide listings and the registry."""
