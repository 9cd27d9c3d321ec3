"""When an agent that ends writes to storage what it has in memory."""

from __future__ import annotations

from typing import Any

import pytest

from agent.checkpoints.last_save import is_whole, newest_step
from agent.facts.world import AgentWorld, Member
from agent.membership import RoundStanding
from agent.monitor import progress
from agent.monitor.progress import ProgressFiles
from agent.slots.process_files import LastSave, StoragePlace
from agent.supervision.last_save import is_due
from crds.agent_report import AgentState
from crds.checkpoint_files import CheckpointTrouble
from crds.phases import RendezvousPhase
from tests.cli.scripted import Clock

ME, PEER = Member(0, 1), Member(1, 1)
JOINED = AgentWorld(1, RendezvousPhase.FORMED, (ME, PEER), 2)
BROKEN = AgentWorld(1, RendezvousPhase.REFORMING, (ME, PEER), 2, broken_round=1)
WITHOUT_ME = AgentWorld(2, RendezvousPhase.FORMED, (PEER,), 1, broken_round=1)
REPLACED = AgentWorld(1, RendezvousPhase.REFORMING, (Member(0, 2), PEER), 2, broken_round=1)


@pytest.mark.parametrize(
    ("phase", "newest", "is_whole_here", "due"),
    [
        ("Suspended", BROKEN, False, True),
        ("Suspended", JOINED, False, True),
        ("Failed", BROKEN, False, True),
        ("Succeeded", JOINED, True, False),
        ("Restarting", BROKEN, False, True),  # drained in a recovery: nobody knows who else is
        ("Running", JOINED, False, False),
        ("Running", JOINED, True, True),
        ("Running", WITHOUT_ME, True, False),
        ("Restarting", REPLACED, True, False),
        ("", None, True, True),
    ],
)
def test_an_agent_keeps_what_nobody_else_may_have(
    phase: str, newest: AgentWorld | None, is_whole_here: bool, due: bool
) -> None:
    standing = RoundStanding(ME, JOINED, newest)
    assert is_due(phase, AgentState.READY, standing, is_whole=is_whole_here) is due
    assert not is_due(phase, AgentState.SUCCEEDED, standing, is_whole=True)


def of_slots(*slots: tuple[int, int, int, int]) -> LastSave:
    place = StoragePlace("/data", "default/llm", None, "")
    return LastSave("n", place, 0, 2, (), tuple((*slot, "/path") for slot in slots), 1.0)


def test_it_is_whole_with_all_ranks_of_one_step() -> None:
    assert is_whole(of_slots((1, 5, 0, 2), (1, 5, 1, 2), (1, 6, 0, 2)))
    apart = of_slots((1, 5, 0, 2), (1, 6, 1, 2))
    assert not is_whole(apart) and newest_step(apart) == 6


@pytest.mark.parametrize("fields", [None, [], {}, {"path": "/data"}, {"path": 1, "job": "", "keep": 1}])
def test_a_place_that_a_script_has_spoilt_is_none(fields: Any) -> None:
    assert StoragePlace.of(fields) is None


def test_a_lost_checkpoint_is_reported_whatever_processes_have_said_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "time", Clock())
    files = ProgressFiles()
    try:
        files.renew(1, files.start)
        files.records[0].with_name("step.0.trouble").write_text('{"CheckpointLost": ""}')
        files.note_lost("step 242 in memory is lost")
        trouble = files.read().trouble
        assert trouble is not None and trouble.reason is CheckpointTrouble.LOST
        assert trouble.message == "step 242 in memory is lost"
    finally:
        files.remove()
