"""What a disk does beside requests: its space, what a crash left, what time does to bytes."""
