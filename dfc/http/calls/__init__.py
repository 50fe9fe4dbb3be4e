"""HTTP requests to nodes: connections, sending and receiving bodies, retries, and errors decoded from answers."""
