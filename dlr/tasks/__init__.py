"""The program in the Pods of `dlr map`, which runs a command for each line of a list (docs/shards.md)."""
