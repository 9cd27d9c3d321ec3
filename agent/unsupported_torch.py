"""What is said of a torch that dlr cannot build on; to be imported without importing torch."""


class UnsupportedTorchError(ImportError):
    """The installed torch is too old, or lacks what dlr builds on; the message says what to do."""
