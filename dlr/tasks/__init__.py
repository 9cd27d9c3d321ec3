"""What runs in the Pods of `dlr map`: a command for each line of a list (docs/shards.md)."""
