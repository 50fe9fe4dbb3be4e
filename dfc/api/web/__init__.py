"""The face of plain URLs, `/bucket/object`, for curl, WebDataset and browsers."""
