"""Notes of saved files go from start to start, and from rank 0's agent to the others."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from agent.monitor.progress import ProgressFiles
from agent.monitor.saved_steps import NOTES_SHARED, FileId, Notes, Position, common_file_in, own_file
from agent.supervision.saved_notes import SavedNotes


class Agent:
    def __init__(self) -> None:
        self.has_trained = False
        self.files = ProgressFiles()
        session = cast(Any, SimpleNamespace(has_trained=lambda: self.has_trained))
        self.notes = SavedNotes(self.files, session)

    def save(self, *steps: int, inode: int) -> None:
        """As its process does."""
        found = {FileId(inode, 1, step): Position(step) for step in steps}
        Notes(found).write(own_file(self.files.records[0]))

    @property
    def handed_on(self) -> Notes:
        return Notes.read(common_file_in(self.files.directory))


@pytest.fixture
def agents() -> Iterator[tuple[Agent, Agent]]:
    both = Agent(), Agent()
    yield both
    for each in both:
        each.files.remove()


def start(*agents: Agent) -> None:
    """Their next round, by rank."""
    store = HashStore()
    for rank, each in enumerate(agents):
        each.notes.meet(store, rank)
    for each in agents:
        each.notes.hand_on()
        each.files.renew(1)


def steps(notes: Notes) -> set[int]:
    return {at.step for at in notes.files.values()}


def test_all_know_what_rank_0_has_saved_and_what_they_have_saved_themselves(
    agents: tuple[Agent, Agent],
) -> None:
    first, second = agents
    start(first, second)
    assert [each.handed_on for each in agents] == [Notes({}, new=True)] * 2
    first.has_trained = True
    first.save(8, 16, inode=1)
    second.save(12, inode=2)
    start(first, second)
    assert steps(first.handed_on) == {8, 16}
    assert steps(second.handed_on) == {8, 12, 16}
    assert not first.handed_on.new and not second.handed_on.new
    start(second, first)
    assert steps(first.handed_on) == {8, 12, 16}, "the notes outlive further starts"


def test_whether_the_job_is_new_is_rank_0s_word(agents: tuple[Agent, Agent]) -> None:
    first, second = agents
    first.has_trained = True
    start(first, second)
    assert not second.handed_on.new


def test_an_older_rank_0_says_nothing(agents: tuple[Agent, Agent]) -> None:
    _, second = agents
    second.notes.meet(HashStore(), 1)
    second.notes.hand_on()
    assert second.handed_on == Notes({})


def test_what_rank_0_says_is_bounded(agents: tuple[Agent, Agent]) -> None:
    first, second = agents
    start(first, second)
    first.save(*range(1, 3 * NOTES_SHARED), inode=1)
    start(first, second)
    assert steps(second.handed_on) == set(range(2 * NOTES_SHARED, 3 * NOTES_SHARED))


def test_a_script_that_tells_its_steps_has_no_notes(agents: tuple[Agent, Agent]) -> None:
    first, second = agents
    for each in agents:
        each.files.told = True
    start(first, second)
    assert not common_file_in(first.files.directory).exists()


def test_notes_that_cannot_be_handed_on_are_no_reason_not_to_start(agents: tuple[Agent, Agent]) -> None:
    first, _ = agents
    first.notes.meet(HashStore(), 0)
    common_file_in(first.files.directory).with_name("saved.new").mkdir()
    first.notes.hand_on()
    assert first.handed_on == Notes({})
