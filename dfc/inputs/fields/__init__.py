"""What extensions mean, and the forms that fields have as bytes: pictures, arrays."""
