"""Reads and evaluates the contents of samples: fields, classes, conditions, sort keys."""
