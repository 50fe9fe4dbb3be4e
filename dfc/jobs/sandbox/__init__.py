"""Runs user code in a sandboxed process: `parent` starts it and talks to it, `child` runs the code, `isolation` confines it.

docs/jobs.md says what the sandbox prevents and what not. Nothing that the child sends is trusted.
"""
