"""The search for samples by their keys at a target."""
