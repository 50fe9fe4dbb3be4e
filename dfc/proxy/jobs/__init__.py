"""Jobs at the proxy: accepting, running, committing and publishing them."""
