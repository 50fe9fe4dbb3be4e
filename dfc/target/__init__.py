"""The storage-target node: serves the objects of its own disks."""
