"""Background and offline work on a disk: free space, cleanup after a crash, scrubbing, checking, rebuilding."""
