"""Where objects live: the cluster map and rendezvous hashing over its disks. Pure."""
