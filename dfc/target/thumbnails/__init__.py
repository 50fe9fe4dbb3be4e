"""Small pictures of what is in shards, made in processes of their own and kept for a while."""
