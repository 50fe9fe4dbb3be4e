"""`python -m dfc.target`: one target node."""

import sys

from dfc.http.run import run_node
from dfc.target.node import TargetNode

if __name__ == "__main__":
    sys.exit(run_node("target", TargetNode, sys.argv[1:]))
