"""Errors that keep a container from starting, in the form of its status."""

from __future__ import annotations


class ConfigError(Exception):
    """The container's description asks for what is not there, or for what this host cannot give."""

    reason = "CreateContainerConfigError"


class MountError(Exception):
    """A volume cannot be made."""

    def __init__(self, volume: str, message: str) -> None:
        super().__init__(f'MountVolume.SetUp failed for volume "{volume}" : {message}')
