"""Checkpoints in memory and planned exits for frameworks with a training loop of their own.

There is one module per framework, on top of `dlr.checkpoint.Checkpointer`. Only that module imports the
framework, and none is a dependency of dlr. docs/checkpoints.md shows their use.
"""
