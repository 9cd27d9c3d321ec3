"""What has to be seen on a real GPU: skipped where torch has none. `pytest tests/gpu e2e/scenarios/test_gpu.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="torch sees no GPU here")
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.real)
            if not torch.cuda.is_available():
                item.add_marker(skip)
