"""What samples hold, as values: fields, classes, conditions on them, sorting by them."""
