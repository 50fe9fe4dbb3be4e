"""What a disk does in the background and offline: free space, cleaning up after a crash, scrubbing, checking, rebuilding."""
