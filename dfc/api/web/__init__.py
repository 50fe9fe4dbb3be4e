"""The face of plain URLs, `/bucket/object`: what curl, WebDataset and browsers use."""
