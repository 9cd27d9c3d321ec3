"""What an agent says first: what its predecessor in the Pod has come to, and of the slot what does not work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from agent.environment import Environment
from agent.facts.world import WorldView
from agent.link import first_report
from crds.agent_report import AgentCheckpointTrouble
from crds.checkpoint_files import CheckpointTrouble

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ME = Environment("job", "default", "job-worker-0", 0, 2, "uid-2", "127.0.0.2")
TROUBLE = {"reason": "StorageFails", "message": "step 10 is not saved"}


def predecessor(uid: str, **said: Any) -> dict[str, Any]:
    return {"incarnation": 2, "podUid": uid, "observedRound": 7, **said}


def test_what_did_not_work_in_an_earlier_pod_of_the_slot_is_not_known_to_work_now() -> None:
    earlier = first_report(predecessor("uid-1", checkpointTrouble=TROUBLE), ME, WorldView(), NOW)
    assert earlier.checkpoint_trouble == AgentCheckpointTrouble(CheckpointTrouble.STORAGE, TROUBLE["message"])
    assert earlier.observed_round == 0, "nothing else of another Pod's counts"
    assert (
        first_report(predecessor("uid-2", checkpointTrouble=TROUBLE), ME, WorldView(), NOW).observed_round
        == 7
    )


@pytest.mark.parametrize("said", [None, {}, {"reason": "NewerThanThis", "message": "x"}])
def test_trouble_that_this_version_does_not_know_is_none(said: Any) -> None:
    assert (
        first_report(predecessor("uid-1", checkpointTrouble=said), ME, WorldView(), NOW).checkpoint_trouble
        is None
    )
