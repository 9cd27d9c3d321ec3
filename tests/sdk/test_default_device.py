"""A script may have its tensors made on a device by default (`torch.set_default_device`); ours stay ours."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._device import _device_constructors

from agent.slots.format import Mark
from dlr.checkpoint.memory import Writer, private_slot
from dlr.checkpoint.state import capture
from dlr.data import ElasticBatchSampler
from tests.checkpoint.states import assert_whole, load, state

ROOT = Path(__file__).parents[2]
FOLDERS = ("dlr", "agent")


@pytest.fixture
def default_device() -> Iterator[None]:
    """A device other than the CPU that is everywhere, and takes no part in what is computed on the CPU."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_each_tensor_is_made_on_a_named_device() -> None:
    makers = {maker.__name__ for maker in _device_constructors() if hasattr(torch, maker.__name__)}
    unnamed = [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and (call.func.value.id, call.func.attr in makers) == ("torch", True)
        and "device" not in {keyword.arg for keyword in call.keywords}
    ]
    assert unnamed == []


@pytest.mark.real
def test_a_state_is_saved_and_loaded_whatever_the_default_device(request: pytest.FixtureRequest) -> None:
    saved, loaded = state(5), state(0)
    request.getfixturevalue("default_device")
    slot = private_slot(captured := capture(saved))
    writer = Writer([slot])
    writer.save(Mark(1, 5, 0, 1), captured)
    writer.wait()
    writer.close()
    load(loaded, slot)
    assert_whole(loaded, 5)


@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_are_dealt_whatever_the_default_device(shuffle: bool, default_device: None) -> None:
    dealt = ElasticBatchSampler(range(8), 1, 0, shuffle=shuffle, global_batch_size=4)
    assert sorted(index for batch in dealt for index in batch) == list(range(8))
