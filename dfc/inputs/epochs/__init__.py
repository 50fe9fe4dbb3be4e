"""Epochs of loaders: the order of samples, where each is read from, repair of errors, and progress."""
