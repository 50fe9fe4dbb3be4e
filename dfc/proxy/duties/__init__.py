"""What the coordinator does by itself, as long as it holds the office."""
