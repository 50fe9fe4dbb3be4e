"""What samples contain, as values: fields, classes, conditions, sort keys."""
