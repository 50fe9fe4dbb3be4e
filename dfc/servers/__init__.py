"""Nodes, assembled: what a proxy and a target are made of, and their lives as processes."""

import os

# Nodes, and the workers that they start, do no linear algebra; NumPy's library for it would start a thread for each processor,
# which is a fifth of a target's start on two of them. Read when NumPy is imported, which is after this package.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
