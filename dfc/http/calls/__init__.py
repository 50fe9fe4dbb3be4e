"""HTTP requests to nodes: connections, bodies, retries, errors decoded from answers, and calls that many wait for at once."""
