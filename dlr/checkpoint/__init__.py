"""Checkpoints in memory and in storage, and planned exits without lost steps."""

from dlr.checkpoint.checkpointer import Checkpointer
from dlr.checkpoint.loading import DamagedCheckpointError
from dlr.checkpoint.modules import MismatchError
from dlr.checkpoint.storage import StorageError

__all__ = ["Checkpointer", "DamagedCheckpointError", "MismatchError", "StorageError"]
