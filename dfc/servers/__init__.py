"""The programs of the two kinds of node, proxy and target: put together, started and stopped."""

import os

# Nodes and the workers that they start do no linear algebra, but NumPy's library for it starts a thread for each processor. On
# two processors that is a fifth of a target's start-up time. NumPy reads this on import, which comes after this package.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
