"""What tasks read and write: the samples of a shard, and outputs of every format."""
