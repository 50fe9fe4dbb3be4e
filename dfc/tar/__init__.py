"""Tar archives: header, streaming reader, writer, index, samples. Knows files and streams, never the network.

`header` says what one header means; going from one to the next is done at three speeds. `scanner` takes everything, with a
loop for plain files; `headerbatch` checks the headers of plain files many at a time, for an index; `sampleparser` makes samples
of them as it goes, for loaders. What the faster two do not know they leave to the scanner, so that all give the same members or
the same error: `tests/unit/tar/test_header_loops.py` holds them to that.
"""
