"""What a proxy knows of the others: which of them run, what they do, and what the coordinator has heard."""
