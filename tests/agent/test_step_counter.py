"""Steps are counted as training makes them, whatever its optimizers are."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim.optimizer import register_optimizer_step_post_hook

from agent.warm import step_counter
from agent.warm.step_counter import counting_hook
from crds.progress_record import COUNTED, FIRST_COUNTED, PROGRESS_FORMAT
from tests.agent.test_warm_start import ENV, run_warm, warm  # noqa: F401 (a fixture)
from tests.cli.scripted import Clock
from tests.counting import calls


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_counter, "time", Clock())


@dataclass(frozen=True)
class Record:
    memory: bytearray

    @property
    def counted(self) -> tuple[int, int]:
        """The first and the newest."""
        words = struct.unpack(PROGRESS_FORMAT, self.memory)
        return words[FIRST_COUNTED], words[COUNTED]


@contextmanager
def counting() -> Iterator[Record]:
    record = Record(bytearray(struct.calcsize(PROGRESS_FORMAT)))
    handle = register_optimizer_step_post_hook(counting_hook(memoryview(record.memory)))
    try:
        yield record
    finally:
        handle.remove()


def weights() -> list[torch.nn.Parameter]:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return [parameter]


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(weights(), lr=0.01)


@pytest.mark.parametrize("critic_steps", [1, 5])
def test_generator_and_discriminator_make_one_step_together(critic_steps: int) -> None:
    """Of a Wasserstein GAN, whose critic makes several steps for one of the generator's, the critic counts."""
    with counting() as record:
        critic, generator = sgd(), sgd()
        for _ in range(3):
            for _ in range(critic_steps):
                critic.step()
            generator.step()
        assert record.counted == (1, 3 * critic_steps)


def test_gradients_that_are_accumulated_make_one_step_and_one_that_the_scaler_skips_makes_none() -> None:
    with counting() as record:
        parameters = weights()
        optimizer = torch.optim.SGD(parameters, lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for scale in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            for _ in range(4):
                scaler.scale((parameters[0] * scale).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert record.counted == (1, 2)


def test_the_number_goes_on_from_a_checkpoint_where_the_optimizer_keeps_it() -> None:
    before = torch.optim.AdamW(weights(), lr=0.01)
    for _ in range(40):
        before.step()
    with counting() as record:
        after = torch.optim.AdamW(weights(), lr=0.01)
        after.load_state_dict(before.state_dict())
        after.step()
        after.step()
        assert record.counted == (41, 42)


def test_the_step_by_which_dcp_makes_the_state_of_an_optimizer_is_none() -> None:
    layer = torch.nn.Linear(2, 2)
    before = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(40):
        layer(torch.ones(1, 2)).sum().backward()
        before.step()
    saved = get_optimizer_state_dict(layer, before)
    with counting() as record:
        after = torch.optim.Adam(layer.parameters(), lr=0.01)
        get_optimizer_state_dict(layer, after)  # as one that dcp.load fills
        assert record.counted == (0, 0)
        set_optimizer_state_dict(layer, after, saved)
        layer(torch.ones(1, 2)).sum().backward()
        after.step()
        assert record.counted == (41, 41)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_never_more_steps_than_were_made_nor_fewer_than_any_optimizer_made(order: list[int]) -> None:
    record = bytearray(struct.calcsize(PROGRESS_FORMAT))
    hook, optimizers = counting_hook(memoryview(record)), [sgd() for _ in range(4)]
    before = 0
    for made, number in enumerate(order, start=1):
        hook(optimizers[number], (), {})
        count = struct.unpack(PROGRESS_FORMAT, record)[COUNTED]
        assert max(order[:made].count(each) for each in range(4)) <= count <= made
        assert before <= count <= before + 1
        before = count


def test_is_cheap_enough_for_every_step() -> None:
    hook, optimizer = counting_hook(memoryview(bytearray(struct.calcsize(PROGRESS_FORMAT)))), sgd()

    hook(optimizer, (), {})
    assert calls(lambda: hook(optimizer, (), {})) <= 8


SCRIPT = """
import os
import torch
assert torch.save.__module__ == torch.load.__module__ == "torch.serialization"
assert not hasattr(torch.save, "__wrapped__") and not hasattr(torch.load, "__wrapped__")
parameter = torch.nn.Parameter(torch.ones(2))
parameter.grad = torch.ones(2)
optimizer = torch.optim.SGD([parameter], lr=0.01)
for _ in range(3):
    optimizer.step()
if os.fork() == 0:
    for _ in range(5):
        optimizer.step()
    os._exit(0)
os.wait()
"""
COMPILED_STEP = 'torch.compile(optimizer.step, backend="eager")()\n'
"""It imports the compiler, which takes three seconds of a core."""


@pytest.mark.real
@pytest.mark.parametrize(
    ("script_text", "switch", "expected"),
    [(SCRIPT + COMPILED_STEP, {}, (1, 4)), (SCRIPT, {"DLR_COUNT_STEPS": "0"}, (0, 0))],
    ids=["counted", "switched off"],
)
def test_a_forked_script_is_counted_its_compiled_steps_too_and_its_children_are_not(
    warm: object,  # noqa: F811
    tmp_path: Path,
    script_text: str,
    switch: dict[str, str],
    expected: tuple[int, int],
) -> None:
    script, file = tmp_path / "train.py", tmp_path / "step"
    script.write_text(script_text)
    file.write_bytes(bytes(struct.calcsize(PROGRESS_FORMAT)))
    env = {**ENV, "DLR_PROGRESS_FILE": str(file), **switch}
    ended = run_warm(warm, [sys.executable, "-u", str(script)], tmp_path, env)  # type: ignore[arg-type]
    assert ended.code == 0, ended.stderr
    assert Record(bytearray(file.read_bytes())).counted == expected
