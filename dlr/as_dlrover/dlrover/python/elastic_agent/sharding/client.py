"""Where scripts that were written for DLRover import its sharding clients from (docs/from-dlrover.md)."""

from dlr.shards.dlrover import IndexShardingClient, Shard, ShardingClient, Task

__all__ = ["IndexShardingClient", "Shard", "ShardingClient", "Task"]
