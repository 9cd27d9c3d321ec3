"""The files by which an agent and its training processes tell each other of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from agent.slots.told import read_every, read_resumed, read_storage, tell_copy_seconds
from agent.whole_file import replace_text
from crds.agent_report import Resumed
from crds.checkpoint_files import ENV_CHECKPOINT_FILE, CheckpointFile, StorageFile

COPY_SECONDS = "copy-seconds"
"""The name of the file that says how long a copy to the peer takes."""


class ProcessFiles:
    """Files of the processes that run, or ran last.

    Args:
        has_replicas: whether a peer is to hold copies.
    """

    def __init__(self, *, has_replicas: bool) -> None:
        self._has_replicas = has_replicas
        self._copy_seconds: Path | None = None
        self._said: list[Path] = []
        """In which processes say what they do with checkpoints."""

    def write(self, directory: Path, contents: Sequence[CheckpointFile]) -> list[dict[str, str]]:
        """Tell each process that is about to start what it is to know.

        Args:
            directory: for the files.
            contents: by local rank, without the names of other files.

        Returns:
            The environment that names the files, by local rank.

        Raises:
            OSError: they cannot be written.
        """
        self._copy_seconds = directory / COPY_SECONDS
        self._said = [directory / f"storage.{local_rank}" for local_rank in range(len(contents))]
        environments = []
        for local_rank, (content, said) in enumerate(zip(contents, self._said, strict=True)):
            names: CheckpointFile = {"storageFile": str(said)}
            if self._has_replicas:
                names["copySecondsFile"] = str(self._copy_seconds)
            path = directory / f"checkpoint.{local_rank}"
            replace_text(path, json.dumps({**content, **names}))  # another file than the last, and not locked
            environments.append({ENV_CHECKPOINT_FILE: str(path)})
        return environments

    def tell_copy_seconds(self, seconds: float) -> None:
        """Say how long a copy to the peer has taken."""
        if self._copy_seconds is not None:
            tell_copy_seconds(self._copy_seconds, seconds)

    def storage(self) -> StorageFile | None:
        """Place of the job's checkpoints in storage, as a process has reported it."""
        return read_storage(self._said)

    def resumed(self, round_: int) -> Resumed | None:
        """What all processes of that round have loaded."""
        return read_resumed(self._said, round_)

    def every(self, round_: int) -> int | None:
        """Steps between two saves to memory in that round."""
        return read_every(self._said, round_)
