"""Each recording of the real Kueue 0.19.1, replayed against the stand-in, gives the same objects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kueue.record import FOLDER
from tests.kueue.replaying import Replay

TRACES = sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz"))
ASIDE: dict[str, dict[str, Any]] = {
    "02-owned": {"stale": (3.21,)},
    "05-queues": {"removed": {13.15: "dangling"}},
    "05u-queues-explicit": {"removed": {13.16: "dangling"}},
    "42-two-slices": {"lost": ("chain-1", "chain-2"), "skipped": (26.53,)},
    "43-slice-while-evicted": {"late": ((9.88, "job-2"),)},
    "47-base-and-extras": {"late": ((9.69, "job-extra-1"), (13.16, "job-extra-2"))},
    "45-manager-killed": {"down": ((1.89, 4.8), (8.505, 11.28), (16.855, 18.89))},
    "45b-old-slice-not-finished": {"lost": ("job-2",)},
    "08-cohort": {"skipped": (4.7,)},
}


@pytest.mark.parametrize("name", TRACES)
def test_the_stand_in_makes_the_same_objects(name: str) -> None:
    assert Replay(name, **ASIDE.get(name, {})).run() > 0
