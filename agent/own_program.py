"""Programs of ours that run beside the training: what saves to storage is one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start(module: str, *, new_session: bool = False) -> subprocess.Popen[str]:
    """Start `python -m MODULE`, with pipes to its input and its output, and with the modules that are here.

    Raises:
        OSError: there can be no other process.
    """
    # Whoever trains with dlr has its modules in the path, and perhaps none in the folder of the moment.
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
    """Return a path with Python's own modules first: the script's folder may have some of their names."""
    standard = Path(os.__file__).parent
    own = {str(standard), str(standard / "lib-dynload")}
    return sorted(path, key=lambda folder: folder not in own)
