"""Writes to storage what agents have in memory when they end, with no training process left to do it.

An agent starts it as a program (`agent.checkpoints.last_save`), with a `LastSave` as its input. Its answer is
a line of JSON: `{"step": …}`, or `{"error": …}`. The programs of all agents agree through files in storage:

    ending-<name>/word-<agent>    what the agent has, and who it sees to be lost
    ending-<name>/choice          by the first agent, or who has its copies: the checkpoint, and its writers

Then each has its ranks' slots written as a saver does.
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
class Word:
    """What one agent has, and whom it sees to be lost."""

    agents: int
    gone: frozenset[int]
    marks: frozenset[Mark]

    @classmethod
    def of(cls, save: LastSave) -> Word:
        return cls(save.agents, frozenset(save.gone), frozenset(Mark(*slot[:4]) for slot in save.slots))

    def encode(self) -> bytes:
        marks = [[it.round, it.step, it.rank, it.world_size] for it in self.marks]
        return json.dumps([self.agents, sorted(self.gone), marks]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Word:
        agents, gone, marks = json.loads(data)
        return cls(agents, frozenset(gone), frozenset(Mark(*mark) for mark in marks))


@dataclass(frozen=True)
class Choice:
    """The checkpoint that is written, and by whom."""

    checkpoint: Checkpoint
    writers: Mapping[int, int]
    """The agent that writes a rank's slot, by rank."""

    def encode(self) -> bytes:
        it = self.checkpoint
        return json.dumps([[it.round, it.step, it.world_size], list(self.writers.items())]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Choice:
        checkpoint, writers = json.loads(data)
        return cls(Checkpoint(*checkpoint), dict(writers))


def are_all_here(words: Mapping[int, Word]) -> bool:
    """Whether every agent of the round has said what it has, but for those that are lost."""
    gone = frozenset[int]().union(*(word.gone for word in words.values()))
    return all(set(range(word.agents)) <= words.keys() | gone for word in words.values())


def choose(words: Mapping[int, Word]) -> Choice | None:
    """Return the newest checkpoint of which the agents have all ranks' slots; None without one."""
    writers: dict[Checkpoint, dict[int, int]] = {}
    for agent, word in sorted(words.items()):
        for mark in word.marks:
            writers.setdefault(Checkpoint.of(mark), {}).setdefault(mark.rank, agent)
    whole = [checkpoint for checkpoint, by in writers.items() if len(by) == checkpoint.world_size]
    return Choice(newest, writers[newest]) if (newest := max(whole, default=None)) else None


def save_last(save: LastSave) -> int:
    """Write the newest checkpoint that the agents which end have together; return its step.

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
    """One agent's part in the agreement.

    Args:
        now: by the monotonic clock.
    """

    def __init__(self, files: Files, save: LastSave, now: float) -> None:
        self._files = files
        self._folder = f"{_FOLDER}{save.name}"
        self._agent = save.agent
        self._own = Word.of(save)
        self._leads = save.agent == 0 or 0 in save.gone
        self._ends_at = now + save.seconds / 2
        """Until then agents are waited for: they may have to stop processes before they come."""

    def agree(self) -> Choice:
        """Return what all write.

        Raises:
            SaveError: there is nothing that the agents which came have together.
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
        words = {self._agent: self._own}

        def look() -> bool | None:
            for name in self._files.names(self._folder):
                if name.startswith(_WORD) and (agent := int(name.removeprefix(_WORD))) not in words:
                    words[agent] = Word.decode(self._files.read(self._at(name)))
            return are_all_here(words) or None

        self._wait(look)
        if (choice := choose(words)) is not None:
            self._files.write(self._at(_CHOICE), choice.encode())
        return choice

    def _read_choice(self) -> Choice | None:
        place = self._at(_CHOICE)
        return Choice.decode(self._files.read(place)) if self._files.exists(place) else None

    def _wait(self, look: Callable[[], T | None]) -> T | None:
        """Look until there is something, or the time is over; a follower waits a little longer."""
        pause, slowest = self._files.look_seconds
        ends_at = self._ends_at if self._leads else self._ends_at + max(1.0, slowest)
        while (found := look()) is None and time.monotonic() < ends_at:
            time.sleep(pause)
            pause = min(pause * 1.2, slowest)
        return found

    def clear(self) -> None:
        """Remove the files of the agreement, when all have read them."""
        if self._leads:
            self._files.remove(self._folder)

    def _at(self, name: str) -> str:
        return f"{self._folder}/{name}"


def main() -> None:
    """Carry out what the input asks for."""
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
    with suppress(OSError):  # nobody is there to hear it
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
