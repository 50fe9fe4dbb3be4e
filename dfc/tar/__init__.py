"""Tar archives: headers, streaming reader, writer, index, samples. Works on files and streams, never on the network.

`header` decodes one header; three parsers walk from header to header. Two are in `scanner`: one handles everything, with a
fast loop for plain files; the other checks the headers of plain files many at a time, for an index. `sampleparser` makes
samples as it goes, for loaders. The faster two leave what they do not handle to the scanner, so that all give the same members
or the same error; `tests/unit/tar/test_header_loops.py` checks that.
"""
