"""Shard sets: what the worker's processes pull, from what the job leases to this worker (docs/shards.md)."""
