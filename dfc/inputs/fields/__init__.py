"""Decoding and encoding of fields by extension: numbers, text, JSON, arrays, pictures."""
