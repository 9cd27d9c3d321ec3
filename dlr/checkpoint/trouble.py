"""What does not work with checkpoints, told to the agent: it becomes a condition and an Event of the job.

It is in a file beside the progress record, which is written when something begins to fail or works again, and
not otherwise. Outside of dlr there is none.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agent.whole_file import replace_text
from crds.checkpoint_files import CheckpointTrouble
from crds.progress_record import ENV_PROGRESS_FILE, TROUBLE_SUFFIX


class Trouble:
    """What this process has told of its checkpoints. Any thread may use it.

    Args:
        environ: names the progress record.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        record = environ.get(ENV_PROGRESS_FILE)
        self._path = Path(f"{record}{TROUBLE_SUFFIX}") if record else None
        self._lock = threading.Lock()
        self._told: dict[CheckpointTrouble, str] = {}
        self._until: dict[CheckpointTrouble, float] = {}
        """Until when (monotonic) something stays, whatever works since."""

    def tell(self, kind: CheckpointTrouble, message: str, at_least_seconds: float = 0.0) -> None:
        """Say that this fails now. What it said of it before is replaced.

        Args:
            at_least_seconds: so long it stays, for all to hear of it.
        """
        self._until[kind] = time.monotonic() + at_least_seconds
        self._say({kind: message})

    def works(self, *kinds: CheckpointTrouble) -> None:
        """Say that these work, also after what an earlier process of this rank has told."""
        news = [kind for kind in kinds if self._told.get(kind) != ""]
        if news and (over := [kind for kind in news if time.monotonic() >= self._until.get(kind, 0.0)]):
            self._say(dict.fromkeys(over, ""))

    def _say(self, news: Mapping[CheckpointTrouble, str]) -> None:
        with self._lock:
            self._told.update(news)
            if self._path is None:
                return
            with suppress(OSError):  # to tell is a courtesy
                replace_text(self._path, json.dumps(self._told))


def quantity(nbytes: float) -> str:
    """At least so many bytes, as Kubernetes writes them: in whole Gi, or in Mi below 16 of these."""
    unit, name = (2**30, "Gi") if nbytes >= 2**34 else (2**20, "Mi")
    return f"{math.ceil(nbytes / unit)}{name}"
