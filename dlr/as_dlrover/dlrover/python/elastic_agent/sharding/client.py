"""The module from which scripts written for DLRover import its sharding clients (docs/from-dlrover.md)."""

from dlr.shards.dlrover import IndexShardingClient, Shard, ShardingClient, Task

__all__ = ["IndexShardingClient", "Shard", "ShardingClient", "Task"]
