"""What the page of a job shows: what it was asked to do, and what its report has found."""
