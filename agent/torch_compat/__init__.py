"""Everything that dlr uses of torch and torch does not promise, in one place.

Public names of torch are imported where they are used. What is here was read in the sources of each minor
version from torch 2.6 to 2.15; where they differ, it says so. `elastic` is what the agent builds on: without
it nothing starts. `training` is what training processes use: without it they train all the same.
"""


class UnsupportedTorchError(ImportError):
    """The installed torch is too old, or lacks what dlr builds on; the message says what to do."""
