"""The cluster for any caller in a thread: the map and the owners, requests tried again, reads that go on, batches."""
