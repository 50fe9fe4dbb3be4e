"""One disk of a target: catalog, blobs, writer, reader, scrub. Blocking code for threads; never the network."""
