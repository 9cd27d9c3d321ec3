"""Groups of real processes of which some are stopped for a while: the others go on without them, and they come back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.replicas import scripts
from tests.replicas.fleet import Fleet
from tests.replicas.test_training import WITHIN_SECONDS, digests_of

pytestmark = pytest.mark.real

PATIENCE_SECONDS = 3.0


@contextmanager
def training(folder: Path, groups: int, size: int, minimum: int) -> Iterator[Fleet]:
    """Groups that train until the end of the block, and then to their end."""
    fleet = Fleet(folder, scripts.train, groups, size, minimum, steps=None, patience_seconds=PATIENCE_SECONDS)
    try:
        all_train = lambda: len(fleet.members) == groups and all(g.trains for g in fleet.groups.values())  # noqa: E731
        fleet.run_until(all_train, WITHIN_SECONDS)
        yield fleet
        (folder / "end").touch()
        fleet.run_until(lambda: fleet.is_over, WITHIN_SECONDS)
    finally:
        fleet.stop()


def steps_of(fleet: Fleet, index: int) -> int:
    return min(fleet.groups[index].steps.values())


def make_steps(fleet: Fleet, indices: list[int], count: int = 20) -> None:
    """Run until groups have made some more steps."""
    before = {index: steps_of(fleet, index) for index in indices}
    fleet.run_until(
        lambda: all(steps_of(fleet, index) >= at + count for index, at in before.items()), WITHIN_SECONDS
    )


def check(fleet: Fleet, returned: set[int], version: int) -> None:
    """Compare with a replay in one process.

    But for the last step that a group had applied when it was stopped: where no other group knew of it, it is
    made again by those, as after a death.

    Args:
        returned: the groups that were stopped.
        version: the one in which they were.
    """
    lines = fleet.lines()
    for index in returned:
        earlier = [line for line in lines if line["group"] == index and line["version"] <= version]
        last = max(line["step"] for line in earlier)
        lines = [line for line in lines if line not in earlier or line["step"] < last]
    by_group: dict[int, list[dict[str, object]]] = {}
    for line in lines:
        by_group.setdefault(line["group"], []).append(line)
    digests = digests_of(lines)
    steps = max(digests) + 1
    assert sorted(digests) == list(range(steps)), "no step is missing"
    assert {max(line["step"] for line in each) + 1 for each in by_group.values()} == {steps}, "one last step"
    assert all(len(each) == 1 for each in digests.values()), "all groups have the same parameters"
    groups_of = {line["step"]: line["groups"] for line in lines if line["groups"]}
    assert all(len(set(each)) == len(each) for each in groups_of.values())
    lead = min((line["group"], line["round"]) for line in lines if line["step"] == 0)
    replayed = scripts.replay(steps, groups_of, seed=lead[0] * 100 + lead[1])
    assert [digests[step].pop() for step in range(steps)] == replayed
    absent = sorted(step for step, each in groups_of.items() if returned - set(each))
    assert absent, "they were left out"
    assert any(returned <= set(groups_of[step]) for step in range(absent[0], steps)), "they contribute again"


@pytest.mark.parametrize(
    ("groups", "size", "stopped"),
    [
        pytest.param(3, 1, [(2, 0)], id="one"),
        pytest.param(3, 1, [(0, 0)], id="the lead"),
        pytest.param(3, 1, [(0, 0), (1, 0)], id="all but one"),
        pytest.param(2, 2, [(1, 1)], id="one process of two"),
    ],
)
def test_a_group_that_is_stopped_is_left_out_and_heals_when_it_goes_on(
    groups: int, size: int, stopped: list[tuple[int, int]], tmp_path: Path
) -> None:
    away = {index for index, _ in stopped}
    others = [index for index in range(groups) if index not in away]
    with training(tmp_path, groups, size, minimum=1) as fleet:
        first = fleet.members
        begun, version = time.monotonic(), fleet.version
        for index, rank in stopped:
            fleet.signal(index, signal.SIGSTOP, rank)
        fleet.run_until(lambda: {index for index, _ in fleet.members} == set(others), WITHIN_SECONDS)
        assert time.monotonic() - begun >= PATIENCE_SECONDS / 2
        assert {each.index for each in fleet.membership.late} == away
        late = [{*each} for _, number, each in fleet.left if number > version]
        assert len(late) <= len(away) or any(each - away for each in late), "unless others were late, too"
        make_steps(fleet, others)
        for index, rank in stopped:
            fleet.signal(index, signal.SIGCONT, rank)
        fleet.run_until(lambda: fleet.members == first, WITHIN_SECONDS)
        assert not fleet.membership.late
        make_steps(fleet, list(range(groups)))
    check(fleet, away, version)


def test_training_never_shrinks_below_the_minimum_for_a_late_group(tmp_path: Path) -> None:
    with training(tmp_path, 2, 1, minimum=2) as fleet:
        version, both = fleet.version, fleet.members
        fleet.signal(1, signal.SIGSTOP)
        fleet.run_until(lambda: fleet.groups[0].late == (version, {1}), WITHIN_SECONDS)
        assert (fleet.version, fleet.members) == (version, both)
        fleet.signal(1, signal.SIGCONT)
        make_steps(fleet, [0, 1])
        fleet.run_until(lambda: fleet.groups[0].late == (version, set()), WITHIN_SECONDS)
        assert fleet.version == version, "nobody was left out"
