"""Tar archives: header, streaming reader, writer, index, samples. Knows files and streams, never the network."""
