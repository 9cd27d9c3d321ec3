"""Groups with checkpoints in storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlr.checkpoint import storage
from dlr.checkpoint.files import files_at
from tests.replicas import keeping
from tests.replicas.fleet import Fleet
from tests.replicas.test_training import WITHIN_SECONDS

pytestmark = pytest.mark.real


def test_groups_that_die_at_once_go_on_from_storage(tmp_path: Path) -> None:
    def stored() -> int:
        return next(storage.steps_in(files_at(tmp_path / "checkpoints")), 0)

    fleet = Fleet(tmp_path, keeping.train, 2, minimum=1)
    groups = fleet.groups
    try:
        fleet.run_until(lambda: stored() > 0 and all(each.trains for each in groups.values()), WITHIN_SECONDS)
        for index in (0, 1):
            fleet.kill(index)
        at = stored()
        fleet.run_until(
            lambda: any(each.trains for each in groups.values() if each.round > 2), WITHIN_SECONDS
        )
    finally:
        fleet.stop()
    lines = [line for line in fleet.lines() if line["trained"]]
    later = [line["step"] for line in lines if line["round"] > 2]
    assert later and min(later) >= at
    assert all(line["rates"] == line["step"] + 1 for line in lines)
