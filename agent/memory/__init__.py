"""Checkpoints in memory that the agent owns: they outlive the training processes (docs/checkpoints.md)."""
