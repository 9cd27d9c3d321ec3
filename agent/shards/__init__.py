"""Shard sets: the worker's processes pull parts of the elements that the job leases to it
(docs/shards.md)."""
