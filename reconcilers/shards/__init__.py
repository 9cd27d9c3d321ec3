"""Who works on which elements of a job's shard sets (docs/shards.md). Pure."""
