"""Real frameworks: what is killed or asked to leave goes on with the next batch, as if nothing had been."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crds.checkpoint_files import KeptIn
from crds.progress_record import ENV_PROGRESS_FILE, EXIT_LEFT, ORDER, RECORD_BYTES, leave_at
from tests.checkpoint import worlds
from tests.checkpoint.worlds import Slots
from tests.forks import PRELOADED, forks
from tests.integrations import training

pytestmark = pytest.mark.real

Main = Callable[[list[str]], None]
Batch = tuple[int, float, float]

WORLD = 2
STEPS_AN_EPOCH = training.SAMPLES // training.BATCH_SIZE // WORLD
LAST_STEP = training.EPOCHS * STEPS_AN_EPOCH
KILLED_IN = STEPS_AN_EPOCH + 2
LAUNCHED = {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}  # what Lightning knows torchrun by

MAINS = {
    "accelerate": training.with_accelerate,
    "lightning": training.with_lightning,
    "transformers": training.with_transformers,
}


@pytest.fixture(scope="module", autouse=True)
def preloaded() -> None:
    """Have the processes forked from one that has the frameworks, unless an earlier test has started that."""
    names = (f"dlr.integrations.{name}" for name in MAINS)
    forks.set_forkserver_preload([*PRELOADED, *names, "transformers.trainer"])


@pytest.fixture
def slots() -> Iterator[Slots]:
    made = Slots()
    yield made
    made.close()


def batches(folder: Path, rank: int) -> list[Batch]:
    """A rank's batches as it began them: step, sum of the samples, loss before the step."""
    return [tuple(json.loads(line)) for line in (folder / f"out.{rank}").read_text().splitlines()]


def undisturbed(folder: Path, main: Main, *arguments: str) -> list[list[Batch]]:
    folder.mkdir()
    worlds.run(folder, WORLD, *arguments, slots=None, main=main, environ=LAUNCHED)
    return [batches(folder, rank) for rank in range(WORLD)]


def run(folder: Path, codes: list[int], *arguments: str, **options: Any) -> None:
    """Start a world whose ranks end with these codes; those with -9 are killed when the first has died."""
    processes = worlds.start(folder, len(codes), *arguments, **options)
    if codes[0] == -9:
        processes[0].join(300)
        for process in processes[1:]:
            process.kill()
    for process in processes:
        process.join(300)
    errors = [(folder / f"err.{options['round']}.{rank}").read_text()[-3000:] for rank in range(len(codes))]
    assert [process.exitcode for process in processes] == codes, errors


def order_to_leave(folder: Path, step: int) -> dict[str, str]:
    """The record of an agent whose vote is that all leave after that step."""
    record = bytearray(RECORD_BYTES)
    struct.pack_into("q", record, 8 * ORDER, leave_at(step, KeptIn.MEMORY))
    (folder / "record").write_bytes(record)
    return {ENV_PROGRESS_FILE: str(folder / "record")}


@pytest.mark.named
@pytest.mark.parametrize("framework", MAINS)
def test_a_training_with_default_arguments_is_killed_and_goes_on_to_its_end(
    framework: str, slots: Slots, tmp_path: Path
) -> None:
    common: dict[str, Any] = {"slots": slots, "main": MAINS[framework], "environ": LAUNCHED}
    run(tmp_path, [-9, -9], "--defaults", f"--die-in={KILLED_IN}", round=1, **common)
    begun = [len(batches(tmp_path, rank)) for rank in range(WORLD)]
    assert begun in ([KILLED_IN] * 2, [KILLED_IN, KILLED_IN - 1]), (
        "rank 1 may be killed before it notes the step"
    )
    run(tmp_path, [0] * WORLD, "--defaults", round=2, **common)
    for rank in range(WORLD):
        steps = [step for step, _, _ in batches(tmp_path, rank)]
        before, after = steps[: begun[rank]], steps[begun[rank] :]
        assert before == [*range(1, begun[rank] + 1)]
        assert KILLED_IN - 1 <= after[0] <= KILLED_IN, "it goes on from what memory had"
        assert after == [*range(after[0], LAST_STEP + 1)]


@pytest.mark.parametrize(
    ("framework", "accumulate"), [("accelerate", 2), ("lightning", 2), ("transformers", 1)]
)
def test_killed_and_left_within_epochs_and_between_them(
    framework: str, slots: Slots, tmp_path: Path, accumulate: int
) -> None:
    """A killed step is begun again, and one more where its copy was not complete; nothing else is, nothing is
    left out, and all losses are the same. (Steps take milliseconds here: docs/checkpoints.md, steps redone.)"""
    main = MAINS[framework]
    arguments = f"--accumulate={accumulate}"
    expected = undisturbed(tmp_path / "undisturbed", main, arguments)
    an_epoch = STEPS_AN_EPOCH // accumulate
    killed_in, left_after = an_epoch + 2, 2 * an_epoch
    assert len(expected[0]) == LAST_STEP // accumulate
    disturbed = tmp_path / "disturbed"
    disturbed.mkdir()
    common: dict[str, Any] = {"slots": slots, "main": main}
    run(disturbed, [-9, -9], arguments, f"--die-in={killed_in}", round=1, environ=LAUNCHED, **common)
    leaves = {**LAUNCHED, **order_to_leave(tmp_path, left_after)}
    run(disturbed, [EXIT_LEFT] * WORLD, arguments, round=2, environ=leaves, **common)
    run(disturbed, [0] * WORLD, arguments, round=3, environ=LAUNCHED, **common)
    for rank in range(WORLD):
        twice = batches(disturbed, rank)
        once = {batch[0]: batch for batch in twice}
        assert len(twice) - len(once) <= 2
        assert [once[step] for step in sorted(once)] == expected[rank]


@pytest.mark.parametrize("framework", ["accelerate", "lightning"])
def test_one_rank_instead_of_two_goes_on_in_the_same_part_of_the_epoch(
    framework: str, slots: Slots, tmp_path: Path
) -> None:
    """The Trainer counts epochs by steps."""
    main = MAINS[framework]
    half = STEPS_AN_EPOCH // 2
    common: dict[str, Any] = {"slots": slots, "main": main}
    leaves = {**LAUNCHED, **order_to_leave(tmp_path, STEPS_AN_EPOCH + half)}
    run(tmp_path, [EXIT_LEFT] * WORLD, round=1, environ=leaves, **common)
    run(tmp_path, [0], round=2, environ=LAUNCHED, **common)
    steps = [step for step, _, _ in batches(tmp_path, 0)]
    left = STEPS_AN_EPOCH + half
    assert steps == [
        *range(1, left + 1),
        *range(left + 1, left + (1 + 2 * (training.EPOCHS - 2)) * STEPS_AN_EPOCH + 1),
    ]


def test_lightning_exchanges_no_weights_that_are_being_copied() -> None:
    """As its WeightAveraging does, by `.data`, so that torch counts no change."""
    from dlr.integrations.lightning import MemoryCheckpoint

    for hook in ("on_validation_start", "on_train_epoch_end"):
        callback, waits = MemoryCheckpoint("/nowhere"), []
        getattr(callback, hook)(None, None)  # a Trainer that only validates
        callback._checkpointer = SimpleNamespace(wait=partial(waits.append, hook))  # type: ignore[assignment]
        getattr(callback, hook)(None, None)
        assert waits == [hook]
