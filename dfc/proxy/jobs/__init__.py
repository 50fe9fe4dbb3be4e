"""Jobs at the proxy: accepted, run, committed, published, swept."""
