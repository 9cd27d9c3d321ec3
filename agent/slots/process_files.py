"""Files by which an agent and its training processes exchange facts on checkpoints.

checkpoint.<local rank>   `ProcessFile` of the agent for a process, written for each start
notice.<local rank>       `Notice` of the process to its agent, replaced as a whole
copy-seconds              duration of the last copy to the peer, for all processes
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.whole_file import replace_text
from crds.agent_report import Resumed
from crds.checkpoint_files import Tier

ENV_CHECKPOINT_FILE = "DLR_CHECKPOINT_FILE"
"""Path of a process's `ProcessFile`."""


@dataclass(frozen=True)
class MemoryResume:
    """The checkpoint in memory to resume from."""

    round: int
    step: int
    world_size: int
    slot: str | None = None
    """Path of this rank's slot, if the world size is unchanged."""
    shards: Mapping[int, str] = field(default_factory=dict)
    """Otherwise the place of each old rank's slot: a path, or tcp://host:port."""
    is_last_resort: bool = False
    """Whether any checkpoint in storage goes first: starts in a row began with this one and saved nothing."""
    persist: Mapping[int, str] = field(default_factory=dict)
    """Paths of slots that this process has to write to storage, by rank of the checkpoint."""
    key: bytes = field(default=b"", repr=False)
    """The job's key, to read slots of other Pods' agents."""


@dataclass(frozen=True, kw_only=True)
class ProcessFile:
    """The agent's facts for a process; all default without an agent."""

    round: int = 0
    """Round of the marks that the process writes."""
    slots: tuple[str, ...] = ()
    """Paths of the slots that it may write into. If it resumes from one of them, that is the first."""
    resume: MemoryResume | None = None
    """None if memory has no usable checkpoint, so that it comes from storage."""
    slots_of_pod: int | None = None
    """Number of slots among which the job's memory for checkpoints is divided."""
    failures_per_hour: float | None = None
    """Failures of the job so far, an hour; None if none has been counted."""
    lost_step: int | None = None
    """Newest step that was in memory here, if nothing in memory is usable any more."""
    notice_file: str = ""
    copy_seconds_file: str = ""
    """Path of the file, which appears with the first copy; empty if the job asks for no replicas."""

    def encode(self) -> str:
        fields = asdict(self)
        if self.resume is not None:
            fields["resume"]["key"] = self.resume.key.hex()
        return json.dumps(fields)

    @classmethod
    def read(cls, path: str) -> ProcessFile:
        """Read a file; raise OSError or ValueError if it cannot be read."""
        fields: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        if resume := fields.get("resume"):
            for name in ("shards", "persist"):
                resume[name] = {int(rank): where for rank, where in resume.get(name, {}).items()}
            fields["resume"] = MemoryResume(**{**resume, "key": bytes.fromhex(resume.get("key", ""))})
        return cls(**{**fields, "slots": tuple(fields.get("slots", ()))})

    def copy_seconds(self) -> float:
        """Return the duration of the last copy to another Pod, in seconds; 0 if there has been none."""
        try:
            return float(Path(self.copy_seconds_file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0.0


@dataclass(frozen=True)
class StoragePlace:
    """The place in storage to which a job's processes save."""

    path: str
    job: str
    """Namespace and name."""
    keep: int | None
    """Number of checkpoints that stay there; None for all."""
    replica_group: str
    """Index of the replica group; empty in a job without groups."""

    @classmethod
    def of(cls, fields: Any) -> StoragePlace | None:
        """Create a place from the fields of a notice; return None if they are malformed."""
        try:
            place = cls(**fields)
        except TypeError:
            return None
        words = place.path, place.job, place.replica_group
        is_number = place.keep is None or type(place.keep) is int
        return place if is_number and all(isinstance(word, str) for word in words) else None


@dataclass(frozen=True)
class LastSave:
    """Checkpoints in memory of an ending agent, for the program that writes them to storage.

    `dlr.checkpoint.last_save` is that program. The programs of all ending agents of a job write together.
    """

    name: str
    """Name of this end, the same on all agents."""
    storage: StoragePlace
    agent: int
    """Rank of the agent in its last round."""
    agents: int
    """Number of agents of that round."""
    gone: tuple[int, ...]
    """Ranks of the agents whose Pods are lost."""
    slots: tuple[tuple[int, int, int, int, str], ...]
    """Round, step, rank and world size of each slot's mark, and the slot's path."""
    seconds: float
    """Time left."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> LastSave:
        """Decode the text of `encode`."""
        fields = json.loads(text)
        fields["storage"] = StoragePlace(**fields["storage"])
        fields["gone"], fields["slots"] = tuple(fields["gone"]), tuple(map(tuple, fields["slots"]))
        return cls(**fields)


class Notice:
    """A process's report to its agent on its checkpoints. Without an agent it does nothing.

    Args:
        given: the agent's facts for the process.
    """

    def __init__(self, given: ProcessFile) -> None:
        self._file = given.notice_file
        self._content: dict[str, Any] = {"round": given.round}

    def tell_storage(self, place: StoragePlace) -> None:
        """Report where this job's processes save to storage."""
        self._tell(storage=asdict(place))

    def withdraw_storage(self) -> None:
        """Report that this process's agent has nothing to save there, since another replica group does."""
        self._tell(storage=None)

    def tell_loaded(self, step: int, tier: Tier) -> None:
        """Report the step that `load` has restored, and its tier."""
        self._tell(loaded=step, tier=tier)

    def tell_every(self, steps: int) -> None:
        """Report the number of steps between two saves to memory."""
        if self._content.get("every") != steps:
            self._tell(every=steps)

    def _tell(self, **news: Any) -> None:
        self._content.update(news)
        if self._file:
            with suppress(OSError):  # then the agent does without
                replace_text(Path(self._file), json.dumps(self._content))


class ProcessFiles:
    """The agent's side of the files of its current or last processes.

    Args:
        has_replicas: whether a peer holds copies.
    """

    def __init__(self, *, has_replicas: bool) -> None:
        self._has_replicas = has_replicas
        self._copy_seconds: Path | None = None
        self._notices: list[Path] = []

    def write(self, directory: Path, contents: Sequence[ProcessFile]) -> list[dict[str, str]]:
        """Write the files of processes that are about to start.

        Args:
            contents: content by local rank, without the names of other files.

        Returns:
            The environment that names the files, by local rank.

        Raises:
            OSError: a file cannot be written.
        """
        self._copy_seconds = directory / "copy-seconds"
        self._notices = [directory / f"notice.{local_rank}" for local_rank in range(len(contents))]
        copy_seconds_file = str(self._copy_seconds) if self._has_replicas else ""
        environments = []
        for local_rank, (content, notice) in enumerate(zip(contents, self._notices, strict=True)):
            content = replace(content, notice_file=str(notice), copy_seconds_file=copy_seconds_file)
            path = directory / f"checkpoint.{local_rank}"
            replace_text(path, content.encode())  # a new file, without locks on the last
            environments.append({ENV_CHECKPOINT_FILE: str(path)})
        return environments

    def tell_copy_seconds(self, seconds: float) -> None:
        """Write the duration of the last copy to the peer for the processes, if there is room for it."""
        if self._copy_seconds is not None:
            with suppress(OSError):
                replace_text(self._copy_seconds, f"{seconds:.3f}")

    def resumed(self, round_: int) -> Resumed | None:
        """Return the step that all processes of that round have loaded; None before all have."""
        found: Resumed | None = None
        for notice in map(_read, self._notices):
            try:
                if notice["round"] != round_:
                    return None
                found = Resumed(round_, Tier(notice["tier"]), int(notice["loaded"]))
            except (ValueError, TypeError, KeyError, OverflowError):
                return None
        return found

    def every(self, round_: int) -> int | None:
        """Return the steps between two saves to memory in that round; None if no process reports it."""
        for notice in map(_read, self._notices):
            every = notice.get("every")
            if notice.get("round") == round_ and isinstance(every, int) and every > 0:
                return every
        return None

    def storage(self) -> StoragePlace | None:
        """Return where processes save to storage, also those of an earlier round; None if none reports it."""
        places = (StoragePlace.of(notice.get("storage")) for notice in map(_read, self._notices))
        return next((place for place in places if place is not None), None)


def _read(notice: Path) -> dict[str, Any]:
    try:
        content = json.loads(notice.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
