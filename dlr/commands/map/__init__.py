"""`dlr map`: a command for each line, in workers that grow and shrink with the work (docs/shards.md)."""
