"""What the page of a dataset shows: its fields, its shards, histograms of a report, and which jobs made it and used it."""
