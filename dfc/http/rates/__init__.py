"""What a node has done, second by second, for the last minutes; and what it is."""
