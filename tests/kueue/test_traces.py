"""Each recording of the real Kueue 0.19.1, replayed against the stand-in, gives the same objects.

Every version of a Workload that the watch gave has to be what the stand-in makes of it by one recorded request or by
one of its moves, whole: metadata, spec and status. Every refusal has to be the same, with its words. Where nothing was
recorded for 1.3 seconds, no move may be left, and as much has to be charged as the ClusterQueues showed.

| Not compared | Why |
| --- | --- |
| times, uids (names stand for them), resourceVersions | they differ |
| spec and status of queues, Events | the stand-in has no such objects of its own; of ClusterQueues what is reserved is compared |
| recordings of what is not modelled | no job of ours meets it |
| the lines in `ASIDE` | each with its reason |
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.kueue.replaying import FOLDER, Replay

TRACES = sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz"))
ASIDE: dict[str, dict[str, Any]] = {
    # Kueue's copy was 10 ms old, from before the deletion raised the generation.
    "02-owned": {"stale": (3.21,)},
    # The writes of Finished were lost. At 26.53 Kueue did not know yet that it had finished late-1 itself.
    "42-two-slices": {"lost": ("chain-1", "chain-2"), "skipped": (26.53,)},
    # Kueue writes admissions in the background: others' conditions, which follow from them, came before them.
    "43-slice-while-evicted": {"late": ((9.88, "job-2"),)},
    "47-base-and-extras": {"late": ((9.69, "job-extra-1"), (13.16, "job-extra-2"))},
    # By the notes, and by what was refused and what Kueue did.
    "45-manager-killed": {"down": ((1.89, 4.8), (8.505, 11.28), (16.855, 18.89))},
    # The write of Finished met a 409.
    "45b-old-slice-not-finished": {"lost": ("job-2",)},
}


def test_all_recordings_are_there() -> None:
    assert len(TRACES) == 41
    assert set(ASIDE) <= set(TRACES)


@pytest.mark.parametrize("name", TRACES)
def test_the_stand_in_makes_the_same_objects(name: str) -> None:
    assert Replay(name, **ASIDE.get(name, {})).run() >= 2
