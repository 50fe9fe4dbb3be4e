"""What a proxy knows of the others: which of them run, and what the coordinator has heard."""
