"""Checkpoints in memory, and leaving by vote, in the frameworks that have a training loop of their own.

A page for each, on top of `dlr.checkpoint.Checkpointer`. Only its own module imports a framework, and none is
a dependency of dlr. docs/checkpoints.md shows their use.
"""
