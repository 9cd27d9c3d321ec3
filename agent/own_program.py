"""Starts dlr's own programs beside the training, such as the one that saves to storage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start(module: str, *, new_session: bool = False) -> subprocess.Popen[str]:
    """Start `python -m MODULE` with this process's module path, and with pipes to its stdin and stdout.

    Raises:
        OSError: the process cannot be started.
    """
    # dlr's modules are in this process's path, but maybe not in the working directory.
    path = {"PYTHONPATH": os.pathsep.join(standard_first(sys.path)), "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", module],
        env={**os.environ, **path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=new_session,
    )


def standard_first(path: Sequence[str]) -> list[str]:
    """Return a path with the standard library first: the script's folder may have modules of its names."""
    standard = Path(os.__file__).parent
    own = {str(standard), str(standard / "lib-dynload")}
    return sorted(path, key=lambda folder: folder not in own)
