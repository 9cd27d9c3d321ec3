"""Groups with checkpoints in storage: none waits for it while another one trains, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlr.checkpoint import storage
from dlr.checkpoint.files import files_at
from tests.replicas import keeping
from tests.replicas.fleet import Fleet

pytestmark = pytest.mark.real

WITHIN_SECONDS = 600
STEPS = 1_000_000


def stored(folder: Path) -> int:
    return next(storage.steps_in(files_at(folder / "checkpoints")), 0)


def first_steps(fleet: Fleet) -> dict[int, int]:
    """The first step that each round of processes made in the state of the job."""
    found: dict[int, int] = {}
    for line in fleet.lines():
        if line["trained"]:
            found[line["round"]] = min(line["step"], found.get(line["round"], STEPS))
    return found


def newest(fleet: Fleet) -> int:
    return max((line["step"] for line in fleet.lines()), default=0)


@pytest.fixture
def fleets() -> Iterator[list[Fleet]]:
    running: list[Fleet] = []
    yield running
    for each in running:
        each.stop()


def trained_for_a_while(tmp_path: Path, fleets: list[Fleet], **arguments: Any) -> Fleet:
    """Two groups that train, with a checkpoint in storage."""
    fleet = Fleet(tmp_path, keeping.train, 2, minimum=1, steps=STEPS, **arguments)
    fleets.append(fleet)
    fleet.run_until(
        lambda: stored(tmp_path) > 0 and all(each.trains for each in fleet.groups.values()), WITHIN_SECONDS
    )
    return fleet


def test_a_group_that_returns_reads_no_storage_while_another_trains(
    tmp_path: Path, fleets: list[Fleet]
) -> None:
    fleet = trained_for_a_while(tmp_path, fleets)
    owner = tmp_path / "checkpoints" / storage.OWNER
    owner.unlink()
    os.mkfifo(owner)  # which is read first; whoever opens it waits for ever
    at = newest(fleet)
    fleet.kill(1)
    fleet.run_until(lambda: fleet.groups[1].round == 3 and fleet.groups[1].trains, WITHIN_SECONDS)
    assert first_steps(fleet)[3] >= at
    lines = {(line["group"], line["step"]): line for line in fleet.lines() if line["trained"]}
    both = [step for group, step in lines if group == 1 and (0, step) in lines]
    assert any(step > at for step in both)
    assert all(lines[0, step]["digest"] == lines[1, step]["digest"] for step in both)
    assert all(line["rates"] == line["step"] + 1 for line in lines.values())


def test_groups_that_die_at_once_go_on_from_storage(tmp_path: Path, fleets: list[Fleet]) -> None:
    fleet = trained_for_a_while(tmp_path, fleets)
    for index in (0, 1):
        fleet.kill(index)
    at = stored(tmp_path)
    fleet.run_until(
        lambda: any(each.trains for each in fleet.groups.values() if each.round > 2), WITHIN_SECONDS
    )
    later = {round_: step for round_, step in first_steps(fleet).items() if round_ > 2}
    assert later and all(step >= at for step in later.values())


def test_a_group_whose_others_die_after_it_has_left_storage_alone_goes_on_from_there(
    tmp_path: Path, fleets: list[Fleet]
) -> None:
    for index in (0, 1):
        os.mkfifo(tmp_path / f"gate-{index}")
    fleet = trained_for_a_while(tmp_path, fleets, gates=(0, 1))
    fleet.kill(1)
    fleet.run_until((tmp_path / "waits-1").exists, WITHIN_SECONDS)
    fleet.kill(0)
    fleet.run_until((tmp_path / "waits-0").exists, WITHIN_SECONDS)
    at = stored(tmp_path)
    assert not fleet.members
    (tmp_path / "gate-1").write_text("")
    fleet.run_until(lambda: fleet.groups[1].trains, WITHIN_SECONDS)
    begins = first_steps(fleet)[3]  # a saver of the killed process may have come to the next one's end
    assert begins >= at
    (tmp_path / "gate-0").write_text("")
    fleet.run_until(lambda: fleet.groups[0].trains, WITHIN_SECONDS)
    assert first_steps(fleet)[fleet.groups[0].round] > begins
    assert all(line["rates"] == line["step"] + 1 for line in fleet.lines() if line["trained"])
