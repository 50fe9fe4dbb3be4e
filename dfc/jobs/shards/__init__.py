"""What tasks read and write: samples out of one shard, bytes into one output."""
