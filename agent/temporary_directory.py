"""A directory for temporary files in containers without one (`readOnlyRootFilesystem`, and no emptyDir)."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from agent.environment import InvalidEnvironmentError

logger = logging.getLogger(__name__)

SHARED_MEMORY = "/dev/shm"
"""Every container has it, and it can be written to even if the root file system cannot."""


def ensure_temporary_directory(environ: MutableMapping[str, str]) -> None:
    """See to it that `tempfile` finds a directory, in this process and in the training processes.

    Args:
        environ: the environment that training processes get; TMPDIR is added if nothing else is writable.

    Raises:
        InvalidEnvironmentError: if there is no directory at all that can be written to.
    """
    try:
        tempfile.gettempdir()
        return
    except FileNotFoundError as error:
        if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
            raise InvalidEnvironmentError(
                "no directory for temporary files can be written to: mount an emptyDir at /tmp in the Pod "
                "template"
            ) from error
    environ["TMPDIR"] = tempfile.tempdir = SHARED_MEMORY
    logger.warning(
        "no directory for temporary files can be written to, so %s is used, whose space NCCL and data "
        "loaders need too: mount an emptyDir at /tmp in the Pod template",
        SHARED_MEMORY,
    )


def bound(server: socket.socket, name: str) -> str:
    """Bind a Unix socket of this name in a directory of its own, and return its path.

    Not every directory for temporary files is fit for a socket: its path may be longer than the 107 bytes of
    an address, and its file system may have no sockets.
    """
    directory = tempfile.mkdtemp(prefix="dlr_")
    try:
        server.bind(f"{directory}/{name}")
    except OSError:
        Path(directory).rmdir()
        directory = tempfile.mkdtemp(prefix="dlr_", dir=SHARED_MEMORY)
        server.bind(f"{directory}/{name}")
    return f"{directory}/{name}"
