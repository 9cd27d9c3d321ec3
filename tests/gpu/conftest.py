"""What has to be seen on a real GPU: skipped where torch has none. `pytest tests/gpu e2e/scenarios/test_gpu.py`.

One GPU is enough for all but those that say they need two.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
TOTAL_SECONDS = 480.0
"""Time limit of all tests here together: a GPU is lent for no longer."""


@pytest.fixture(scope="package", autouse=True)
def in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < TOTAL_SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="torch sees no GPU here")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.real)
            if not torch.cuda.is_available():
                item.add_marker(skip)
