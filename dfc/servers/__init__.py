"""Nodes, assembled: what a proxy and a target are made of, and their lives as processes."""
