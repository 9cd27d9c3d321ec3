"""What every container gets of the host, in place of an image."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from localcluster.client.api import Access

INHERITED = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")


def host_environment() -> dict[str, str]:
    """The least that programs expect, and this Python's programs first on the path."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    programs = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    if sys.prefix != sys.base_prefix:
        kept["VIRTUAL_ENV"] = sys.prefix
    return kept


def api_environment(access: Access) -> dict[str, str]:
    """Where in-cluster clients look for the API server."""
    port = str(access.port)
    return {
        "KUBERNETES_SERVICE_HOST": access.host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
    }
