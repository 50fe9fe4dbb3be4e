"""What an epoch is: which sample comes when, from where it is read, how far it is."""
