"""The loop of docs/elasticity.md runs as it is written, here in a process without an agent."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import dlr.checkpoint
import dlr.replicas

pytestmark = pytest.mark.real

PAGE = Path(__file__).parents[2] / "docs" / "elasticity.md"


def documented_loop() -> str:
    section = PAGE.read_text().split("## Processes that live on", 1)[1]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_loop_of_processes_that_live_on_makes_each_step(tmp_path: Path) -> None:
    code = documented_loop()
    assert "/data/run1" in code and "10_000" in code
    model, made = nn.Linear(2, 1), list[int]()

    def batch(step: int) -> torch.Tensor:
        made.append(step)
        return torch.full((4, 2), float(step))

    script = {
        "dlr": dlr,
        "sys": sys,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "criterion": torch.Tensor.mean,
        "batch": batch,
    }
    before = model.bias.item()
    exec(code.replace("/data/run1", str(tmp_path)).replace("10_000", "3"), script)
    assert made == [0, 1, 2]
    assert model.bias.item() != before
