"""Parts of the host that every container gets, in place of an image."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from localcluster.paths import PRIVATE_FOLDER_MODE

LONGEST_TEMPORARY = 72
"""Characters: a Unix socket's path has 107 (unix(7)), and multiprocessing's takes 32 behind this."""
INHERITED = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")


def host_environment() -> dict[str, str]:
    """The least that programs expect, and this Python's programs first on the path."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    programs = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    if sys.prefix != sys.base_prefix:
        kept["VIRTUAL_ENV"] = sys.prefix
    return kept


def temporary_environment(folder: Path) -> dict[str, str]:
    """A Pod's own folder for temporary files, as a container has one: they go with the Pod.

    None where its path is so long that a program's Unix socket in it would have none.
    """
    if len(str(folder)) > LONGEST_TEMPORARY:
        return {}
    folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER_MODE)
    return {"TMPDIR": str(folder)}


def api_environment(server: str) -> dict[str, str]:
    """Return the variables by which in-cluster clients find the API server."""
    address = urlsplit(server)
    port = str(address.port or 443)
    return {
        "KUBERNETES_SERVICE_HOST": address.hostname or "",
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
    }
