"""Jobs at the proxy: accept, run, commit and publish them."""
