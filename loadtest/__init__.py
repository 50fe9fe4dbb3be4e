"""Load scenarios, benchmarks beside nginx and the demo of DFC: outside of the product, speaking HTTP to it like any client."""
