"""Mistakes put into the source of the server, one at a time, and the test that notices each."""
