"""Orders of samples: pure functions that say which sample comes when. Shared by jobs, loaders and nodes."""
