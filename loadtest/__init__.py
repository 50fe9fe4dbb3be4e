"""Load scenarios, benchmarks against nginx and the demo of DFC. Not part of the product: they use HTTP like any client."""
