"""All private parts of torch that dlr uses, in one place.

Public names of torch are imported where they are used. The parts here were checked in the sources of each
minor version from torch 2.6 to 2.15, with notes where they differ. The agent needs `elastic` to start.
Training processes use `training`, and can train without it.
"""


class UnsupportedTorchError(ImportError):
    """The installed torch is too old, or lacks a part that dlr needs; the message names the remedy."""
