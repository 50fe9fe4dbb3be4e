"""Moving samples unchanged: their order over a whole dataset, and the ways to write it."""
