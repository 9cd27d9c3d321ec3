"""What is written to storage after a failure: whose slot it is, and when that is over."""

from __future__ import annotations

import pytest

from agent.checkpoints import persisting
from agent.checkpoints.persisting import Persisting
from agent.slots.resume import Checkpoint
from agent.slots.slot import Slot
from crds.checkpoint_files import StorageFile

STORAGE: StorageFile = {"path": "/data/run", "job": "default/job", "keep": None}


def test_no_process_writes_into_a_slot_that_is_to_be_persisted_until_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(persisting, "DELAY_SECONDS", 600.0)
    slot = Slot.create("dlr-slot", 1 << 20)
    of_process = Slot.open(slot.path)
    savers = Persisting()
    savers.begin(2, Checkpoint(1, 10, 1), {0: slot}, STORAGE)
    assert not of_process.lock(shared=False)
    savers.end()
    assert of_process.lock(shared=False)
