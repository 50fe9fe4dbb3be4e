"""Faces: how nodes speak with each kind of client. Each parses a request, calls a node, and renders what that gives."""
