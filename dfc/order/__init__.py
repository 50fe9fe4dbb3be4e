"""Orders of samples: pure functions that say which sample comes when, for jobs, loaders and nodes alike."""
