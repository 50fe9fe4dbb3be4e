"""Code of users, in a process of its own: `parent` starts it and speaks with it, `child` runs it, `isolation` shuts it in.

What the child is kept from, and what not, is in docs/jobs.md; nothing that it sends is trusted.
"""
