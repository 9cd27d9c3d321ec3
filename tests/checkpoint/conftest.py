from __future__ import annotations

from collections.abc import Iterator

import pytest

from dlr.checkpoint import choosing, persistence
from tests.checkpoint import at_once, savers
from tests.checkpoint.buckets import Bucket, served
from tests.cli.scripted import Clock
from tests.replicas.conftest import process_group

__all__ = ["process_group"]


@pytest.fixture(autouse=True)
def played(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Clock, at_once.Gate] | None:
    """A real test has savers that are forked, and patience; all others are played, by this clock."""
    if request.node.get_closest_marker("real") is None:
        return at_once.play(monkeypatch)
    monkeypatch.setattr(persistence, "start_saver", lambda: savers.start_saver(savers.server().control))
    # On a busy machine a thread that lists, and a process that was killed, may not run for a while.
    monkeypatch.setattr(choosing, "HUNG_SECONDS", 300.0)
    monkeypatch.setattr(persistence, "_END_SECONDS", 300.0)
    return None


@pytest.fixture
def clock(played: tuple[Clock, at_once.Gate]) -> Clock:
    return played[0]


@pytest.fixture
def gate(played: tuple[Clock, at_once.Gate]) -> at_once.Gate:
    return played[1]


@pytest.fixture(scope="session")  # fsspec keeps its clients, and these the server's address
def server() -> Iterator[str]:
    yield from served()


@pytest.fixture
def bucket(server: str) -> Bucket:
    return Bucket()
