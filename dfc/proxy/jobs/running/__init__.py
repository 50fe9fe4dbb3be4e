"""One job that is under way: its tasks, what it has staged, its commit and what is published."""
