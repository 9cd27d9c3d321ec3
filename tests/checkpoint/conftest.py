from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlr.checkpoint import persistence
from tests.checkpoint import savers
from tests.checkpoint.buckets import Bucket, served


@pytest.fixture(autouse=True)
def _forked_savers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "start_saver", lambda: savers.start_saver(savers.server().control))


@pytest.fixture(scope="session")  # fsspec keeps its clients, and these the server's address
def server() -> Iterator[str]:
    yield from served()


@pytest.fixture
def bucket(server: str) -> Bucket:
    return Bucket()
