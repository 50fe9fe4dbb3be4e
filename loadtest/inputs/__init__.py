"""What the benchmark of the loaders runs: data like that of real datasets, and readers, each in a process of its own."""
