"""Spare processes: started ahead, they run the script up to its loop and wait there for a round.

There is one for each training process of the Pod. Each has the memory of a model and an optimizer, and the
context of a device, like a process that trains.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.facts.failure import ERROR_FILE
from agent.processes.orphans import Orphans
from agent.slots.process_files import ENV_CHECKPOINT_FILE
from agent.survival import handles
from agent.survival.desk import WorldDesk
from agent.survival.handles import ProcessHandle
from agent.warm.warm_parent import WarmStart
from crds.names import ENV_JOINS, ENV_SPARE
from crds.progress_record import ENV_PROGRESS_FILE, ENV_RECORDER_SOCKET, ENV_STACKS_FILE, RECORD_BYTES

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Number of spares in a row that end before one is needed, after which there are no more."""
FOLDER = "spare"
"""Name of the folder of their logs, beside those of the rounds."""
NICENESS = 10
CAP_SYS_NICE = 23


@dataclass(frozen=True)
class Launch:
    """Command and environment of a training process."""

    argv: Sequence[str]
    env: Mapping[str, str]

    @property
    def place(self) -> tuple[str, str]:
        """Rank and size of its world, which a script may have read by now."""
        return self.env["RANK"], self.env["WORLD_SIZE"]


@dataclass(frozen=True)
class Spare:
    """A process that waits at its loop, or is on its way there."""

    process: ProcessHandle
    place: tuple[str, str]
    """Rank and size of the world that it was started for."""
    log: Path


class Spares:
    """The spares of one agent, by local rank. Not thread-safe.

    Args:
        directory: folder of the agent's progress files.
    """

    def __init__(self, desk: WorldDesk, warm_start: WarmStart, orphans: Orphans, directory: Path) -> None:
        self._desk = desk
        self._warm_start = warm_start
        self._orphans = orphans
        self._directory = directory
        self._launches: dict[int, Launch] = {}
        self._spares: dict[int, Spare] = {}
        self._failures: dict[int, int] = {}
        """Number of spares in a row that ended before one was needed, by local rank."""
        self._niceness = NICENESS if may_lower_niceness() else 0

    def pids(self) -> list[int]:
        return [spare.process.pid for spare in self._spares.values()]

    def note_launch(self, local_rank: int, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Note the command and environment of a process of the round, which its spare gets too."""
        self._launches[local_rank] = Launch(argv, env)

    def look(self, *, wanted: bool) -> None:
        """Drop spares that have ended or whose rank has changed; start missing ones.

        Args:
            wanted: the processes of the round train, so that spares may start beside them.
        """
        for local_rank, spare in list(self._spares.items()):
            has_ended = spare.process.poll() is not None
            if has_ended:
                self._note_failure(local_rank, spare)
            if has_ended or not self._fits(spare, self._launches[local_rank].place):
                del self._spares[local_rank]
                handles.end([spare.process])  # its orphans end with the round, which trains now
        may_come = max(self._failures.values(), default=0) < MAX_FAILURES
        if wanted and may_come and self._warm_start.is_warm():
            for local_rank in self._launches.keys() - self._spares.keys():
                self._start(local_rank, self._launches[local_rank])

    def take(self, local_rank: int, env: Mapping[str, str]) -> ProcessHandle | None:
        """Remove and return the spare for a process with that environment; None if there is none."""
        spare = self._spares.pop(local_rank, None)
        if spare is None:
            return None
        if spare.process.poll() is not None or not self._fits(spare, (env["RANK"], env["WORLD_SIZE"])):
            handles.end([spare.process])
            return None
        self._failures[local_rank] = 0
        self._set_niceness(spare.process.pid, 0)
        return spare.process

    def _fits(self, spare: Spare, place: tuple[str, str]) -> bool:
        """Return whether a spare can take a place: it was started for it, or goes into any."""
        return spare.place == place or self._desk.words(spare.process.pid).goes_into(*map(int, place))

    def give_up(self) -> list[ProcessHandle]:
        """Remove and return all spares."""
        spares, self._spares = self._spares, {}
        return [spare.process for spare in spares.values()]

    def _start(self, local_rank: int, launch: Launch) -> None:
        progress = self._directory / f"{FOLDER}.{local_rank}"
        own = {ENV_PROGRESS_FILE: str(progress), ENV_JOINS: "1", ENV_SPARE: "1"}
        env = {n: v for n, v in launch.env.items() if n not in (ENV_CHECKPOINT_FILE, ENV_RECORDER_SOCKET)}
        with contextlib.ExitStack() as opened:
            try:
                logs = _log_folder(launch.env, local_rank)
                if logs is not None:
                    own |= {ENV_STACKS_FILE: str(logs / "stacks.txt"), ERROR_FILE: str(logs / "error.json")}
                progress.write_bytes(bytes(RECORD_BYTES))
                redirects = {
                    number: opened.enter_context(_log(logs, name).open("wb")).fileno()
                    for number, name in ((1, "stdout.log"), (2, "stderr.log"))
                }
                process = self._warm_start.start(launch.argv, env | own, redirects)
            except OSError as error:
                logger.warning("there are no spare processes: their files cannot be written: %s", error)
                self._failures[local_rank] = MAX_FAILURES
                return
        if process is None:
            return
        self._orphans.started([process.pid])
        self._spares[local_rank] = Spare(process, launch.place, _log(logs, "stderr.log"))
        self._desk.expect([*self._desk.pids(), process.pid])
        self._set_niceness(process.pid, self._niceness)

    def _note_failure(self, local_rank: int, spare: Spare) -> None:
        self._failures[local_rank] = self._failures.get(local_rank, 0) + 1
        if self._failures[local_rank] == MAX_FAILURES:
            logger.warning(
                "no more spare processes in this Pod: %d in a row have ended before one was needed, the "
                "last one with exit code %s. See %s",
                *(MAX_FAILURES, spare.process.poll(), spare.log),
            )

    def _set_niceness(self, pid: int, niceness: int) -> None:
        """Set the niceness of each thread of a process, which Linux has for each (setpriority(2))."""
        if self._niceness:
            with contextlib.suppress(OSError):  # it has ended
                for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                    os.setpriority(os.PRIO_PROCESS, int(thread), niceness)


def _log_folder(env: Mapping[str, str], local_rank: int) -> Path | None:
    """Return the folder of a spare's logs; None if the round has none."""
    error_file = Path(env.get(ERROR_FILE, os.devnull))
    if len(error_file.parents) < 4:
        return None
    folder = error_file.parents[2] / FOLDER / str(local_rank)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _log(folder: Path | None, name: str) -> Path:
    return Path(os.devnull) if folder is None else folder / name


def may_lower_niceness() -> bool:
    """Return whether a raised niceness can be lowered again (getrlimit(2), RLIMIT_NICE)."""
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - os.getpriority(os.PRIO_PROCESS, 0):
        return True
    lines = Path("/proc/self/status").read_text().splitlines()
    capabilities = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(capabilities, 16) >> CAP_SYS_NICE & 1)
