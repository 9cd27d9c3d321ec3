from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlr.checkpoint import choosing, persistence
from tests.checkpoint import savers
from tests.checkpoint.buckets import Bucket, served


@pytest.fixture(autouse=True)
def _forked_savers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "start_saver", lambda: savers.start_saver(savers.server().control))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a thread that lists, and a process that was killed, may not run for a while."""
    monkeypatch.setattr(choosing, "HUNG_SECONDS", 300.0)
    monkeypatch.setattr(persistence, "_END_SECONDS", 300.0)


@pytest.fixture(scope="session")  # fsspec keeps its clients, and these the server's address
def server() -> Iterator[str]:
    yield from served()


@pytest.fixture
def bucket(server: str) -> Bucket:
    return Bucket()
