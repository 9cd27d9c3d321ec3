"""Program that writes agents' checkpoints in memory to storage when no training process is left to do it.

An agent that ends starts it (`agent.checkpoints.last_save`), with a `LastSave` as its input. Its answer is a
line of JSON: `{"step": …}`, or `{"error": …}`. The programs of all agents agree through files in storage:

    ending-<name>/word-<agent>    slots of the agent, and the agents that it sees as lost
    ending-<name>/choice          the checkpoint, and its writers; by agent 0, or the agent with its copies

Then each writes its ranks' slots as a saver does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch

from agent.slots.format import Mark
from agent.slots.process_files import LastSave
from agent.slots.resume import Checkpoint
from crds.checkpoint_files import AFTER_FAILURE, attempt_of
from dlr.checkpoint import storage
from dlr.checkpoint.files import Files, files_at
from dlr.checkpoint.saver import try_to_persist
from dlr.checkpoint.sharing import SaveError, SaveRequest

T = TypeVar("T")

_FOLDER, _WORD, _CHOICE = "ending-", "word-", "choice"


@dataclass(frozen=True)
class AgentSlots:
    """Slots of one agent, and the agents that it sees as lost."""

    agents: int
    gone: frozenset[int]
    marks: frozenset[Mark]

    @classmethod
    def of(cls, save: LastSave) -> AgentSlots:
        return cls(save.agents, frozenset(save.gone), frozenset(Mark(*slot[:4]) for slot in save.slots))

    def encode(self) -> bytes:
        marks = [[it.round, it.step, it.rank, it.world_size] for it in self.marks]
        return json.dumps([self.agents, sorted(self.gone), marks]).encode()

    @classmethod
    def decode(cls, data: bytes) -> AgentSlots:
        agents, gone, marks = json.loads(data)
        return cls(agents, frozenset(gone), frozenset(Mark(*mark) for mark in marks))


@dataclass(frozen=True)
class Choice:
    """The checkpoint to write, and its writers."""

    checkpoint: Checkpoint
    writers: Mapping[int, int]
    """Agent that writes a rank's slot, by rank."""

    def encode(self) -> bytes:
        it = self.checkpoint
        return json.dumps([[it.round, it.step, it.world_size], list(self.writers.items())]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Choice:
        checkpoint, writers = json.loads(data)
        return cls(Checkpoint(*checkpoint), dict(writers))


def are_all_here(reports: Mapping[int, AgentSlots]) -> bool:
    """Whether every agent of the round has reported its slots, or is lost."""
    gone = frozenset[int]().union(*(one.gone for one in reports.values()))
    return all(set(range(one.agents)) <= reports.keys() | gone for one in reports.values())


def choose(reports: Mapping[int, AgentSlots]) -> Choice | None:
    """Return the newest checkpoint for which the agents have all ranks' slots; None without one."""
    writers: dict[Checkpoint, dict[int, int]] = {}
    for agent, report in sorted(reports.items()):
        for mark in report.marks:
            writers.setdefault(Checkpoint.of(mark), {}).setdefault(mark.rank, agent)
    whole = [checkpoint for checkpoint, by in writers.items() if len(by) == checkpoint.world_size]
    return Choice(newest, writers[newest]) if (newest := max(whole, default=None)) else None


def save_last(save: LastSave) -> int:
    """Write the newest checkpoint that the ending agents have in common; return its step.

    Raises:
        SaveError: there is none, or it could not be written.
        OSError, StorageError: the storage cannot be read or written.
    """
    files = files_at(save.storage.path)
    storage.check_owner(files, save.storage.job)
    meeting = _Meeting(files, save, time.monotonic())
    choice = meeting.agree()
    step = choice.checkpoint.step
    if next(storage.steps_in(files), -1) >= step:
        return step
    mine = [
        (Mark(*mark), path)
        for *mark, path in save.slots
        if Checkpoint.of(Mark(*mark)) == choice.checkpoint and choice.writers[mark[2]] == save.agent
    ]
    requests = list({mark.rank: _request(save, mark, path) for mark, path in mine}.values())
    with ThreadPoolExecutor(max(len(requests), 1)) as pool:  # they wait for each other
        errors = list(pool.map(lambda request: try_to_persist(request, lambda: None), requests))
    if error := next(filter(None, errors), None):
        raise SaveError(f"step {step} is not written: {error}")
    meeting.clear()
    return step


def _request(save: LastSave, mark: Mark, path: str) -> SaveRequest:
    attempt = attempt_of(f"{AFTER_FAILURE}{save.name}", save.storage.replica_group)
    return SaveRequest(
        *(path, mark.step, mark.round, mark.rank, mark.world_size, save.storage.path),
        *(attempt, save.storage.job, save.storage.keep),
    )


class _Meeting:
    """One agent's side of the agreement.

    Args:
        now: monotonic time, in seconds.
    """

    def __init__(self, files: Files, save: LastSave, now: float) -> None:
        self._files = files
        self._folder = f"{_FOLDER}{save.name}"
        self._agent = save.agent
        self._own = AgentSlots.of(save)
        self._leads = save.agent == 0 or 0 in save.gone
        self._ends_at = now + save.seconds / 2
        """Deadline for the other agents, which may have to stop processes first."""

    def agree(self) -> Choice:
        """Return the checkpoint that all agents write.

        Raises:
            SaveError: the agents that reported have no checkpoint in common.
        """
        word = self._at(f"{_WORD}{self._agent}")
        if self._leads and are_all_here({self._agent: self._own}):
            choice = choose({self._agent: self._own})
        else:
            self._files.write(word, self._own.encode())
            choice = self._lead() if self._leads else self._wait(self._read_choice)
        if choice is None:
            self._files.remove(word)
            raise SaveError("the agents that are left have no step of all ranks")
        return choice

    def _lead(self) -> Choice | None:
        reports = {self._agent: self._own}

        def look() -> bool | None:
            for name in self._files.names(self._folder):
                if name.startswith(_WORD) and (agent := int(name.removeprefix(_WORD))) not in reports:
                    reports[agent] = AgentSlots.decode(self._files.read(self._at(name)))
            return are_all_here(reports) or None

        self._wait(look)
        if (choice := choose(reports)) is not None:
            self._files.write(self._at(_CHOICE), choice.encode())
        return choice

    def _read_choice(self) -> Choice | None:
        place = self._at(_CHOICE)
        return Choice.decode(self._files.read(place)) if self._files.exists(place) else None

    def _wait(self, look: Callable[[], T | None]) -> T | None:
        """Call `look` until it returns a value, or until the deadline, which followers extend a little."""
        pause, slowest = self._files.look_seconds
        ends_at = self._ends_at if self._leads else self._ends_at + max(1.0, slowest)
        while (found := look()) is None and time.monotonic() < ends_at:
            time.sleep(pause)
            pause = min(pause * 1.2, slowest)
        return found

    def clear(self) -> None:
        """Remove the files of the agreement, after all have read them."""
        if self._leads:
            self._files.remove(self._folder)

    def _at(self, name: str) -> str:
        return f"{self._folder}/{name}"


def main() -> None:
    """Save as the `LastSave` in the input asks."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    for number in (signal.SIGINT, signal.SIGTERM):  # the agent ends it
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    answer: dict[str, object]
    try:
        answer = {"step": save_last(LastSave.decode(sys.stdin.read()))}
    except (SaveError, storage.StorageError, OSError) as error:
        answer = {"error": str(error)}
    except Exception as error:  # a client of object storage may raise anything
        answer = {"error": f"{type(error).__name__}: {error}"}
    with suppress(OSError):  # the agent may have closed its end
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
