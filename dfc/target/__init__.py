"""The use cases of a target: objects, members, listings, batch reads and staged outputs of jobs on its own disks."""
