"""The code that runs on workers: reads shards, writes outputs, and limits their use of the machine."""
