"""Moves samples unchanged: computes their order over a whole dataset, and writes them in that order."""
