"""`python -m dfc.proxy`: one proxy node."""

import sys

from dfc.http.run import run_node
from dfc.proxy.node import ProxyNode

if __name__ == "__main__":
    sys.exit(run_node("proxy", ProxyNode, sys.argv[1:]))
