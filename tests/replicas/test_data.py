"""Samples that real groups learn from while their processes are killed."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.replicas.fleet import Fleet
from tests.replicas.learning import learn, learn_shards
from tests.replicas.test_training import STEPS_AFTER, WITHIN_SECONDS

pytestmark = pytest.mark.real

LENGTH = 500
KILLS = 3
LEAST_STEPS = 250


def lines_of(fleet: Fleet) -> list[dict[str, Any]]:
    """What the processes wrote, but for a step that one of them saw committed last before it was killed."""
    killed = {round_ for _, _, round_ in fleet.kills}
    found: list[dict[str, Any]] = []
    for path in sorted(fleet.folder.glob("log-*")):
        lines = [json.loads(text) for text in path.read_text().splitlines() if text.endswith("}")]
        if lines and lines[-1]["round"] in killed and "committed" in lines[-1]:
            del lines[-1]
        found += lines
    return found


@pytest.mark.parametrize(
    ("what", "options"),
    [
        (learn, {"constant_batch": True}),
        (learn, {"constant_batch": False}),
        (learn_shards, {}),
    ],
)
def test_every_sample_once_an_epoch_while_processes_of_groups_are_killed(
    tmp_path: Path, what: Callable[..., None], options: dict[str, Any]
) -> None:
    chance, kills = random.Random(1), 0
    fleet = Fleet(tmp_path, what, 3, 2, length=LENGTH, seconds=0.004, **options)

    def kill_and_look() -> bool:
        nonlocal kills
        groups = fleet.groups.values()
        if kills < KILLS and all(group.trains for group in groups):
            fleet.kill(chance.randrange(3), chance.randrange(2))
            kills += 1
        elif all(
            group.trains_for(STEPS_AFTER) and min(group.steps.values()) > LEAST_STEPS for group in groups
        ):
            (tmp_path / "end").touch()
        return fleet.is_over

    try:
        fleet.run_until(kill_and_look, WITHIN_SECONDS)
    finally:
        fleet.stop()
    assert kills == KILLS

    learned: dict[tuple[int, int, int], dict[str, Any]] = {}
    states: dict[int, list[dict[str, Any]]] = defaultdict(list)
    committed: dict[int, list[int]] = {}
    for line in lines_of(fleet):
        if "learned" in line:
            learned[line["step"], line["group"], line["rank"]] = line
        else:
            states[line["step"]].append(line["state"])
            committed[line["step"]] = line["committed"]
    assert sorted(committed) == list(range(max(committed) + 1))
    assert any(len(groups) < 3 for groups in committed.values())

    epochs: dict[int, Counter[int]] = defaultdict(Counter)
    for step, groups in committed.items():
        lines = [learned[step, group, rank] for group in groups for rank in range(2)]
        assert all(line["begun"] == lines[0]["begun"] for line in lines)
        assert all(state == states[step][0] for state in states[step])
        for line in lines:
            epochs[line["epoch"]].update(line["learned"])
    last = max(epochs)
    assert last > 5
    assert all(epochs[epoch] == Counter(range(LENGTH)) for epoch in range(last))
