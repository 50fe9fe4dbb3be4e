"""Formats that samples are converted to and from, one module each; `table` lists them.

A writer has `add(sample)` and `finish()` over a `Sink`; a reader is a function that yields samples from a `Readable`. No
network; nothing is extracted to disk or evaluated. Layouts: docs/formats.md.
"""
