"""What a target does about copies in the background: notes, surplus rows, damaged bytes, and counts of what is lacking."""
