"""Jobs that move samples as they are: their order over a whole dataset, and the ways to write it."""
