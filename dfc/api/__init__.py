"""Faces: the HTTP interfaces of nodes, one for each kind of client. A face parses a request, calls a use case and renders the
result as an answer."""
