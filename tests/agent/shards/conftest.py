"""A job whose agents have desks, with the controller's own decision behind them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from agent.shards.desk import Desk
from crds.shard_set import ENV_SHARDS_SOCKET
from reconcilers.shards.lease import lease
from reconcilers.shards.sets import SetState, ShardPullers, report_of

NOW = datetime(2026, 11, 23, tzinfo=UTC)


class Job:
    """A job whose controller looks whenever one of the desks has something to tell."""

    def __init__(self) -> None:
        self.desks: dict[int, Desk] = {}
        self.sets: tuple[SetState, ...] = ()
        self.writes = 0
        self._lock = threading.RLock()

    def add(self, worker: int) -> Desk:
        desk = self.desks[worker] = Desk(worker, 1)
        desk.serve(lambda soon: self.look() if soon < math.inf else None)
        return desk

    def remove(self, worker: int) -> None:
        with self._lock:
            desk = self.desks.pop(worker)
        desk.stop()
        self.look()

    def look(self) -> None:
        with self._lock:
            voices = [
                report_of(worker, 1, said)
                for worker, desk in list(self.desks.items())  # others are added meanwhile
                for said in desk.to_status() or ()
            ]
            decided = lease(
                self.sets, ShardPullers(dict.fromkeys(self.desks, 1), voices, len(self.desks)), NOW
            )
            if decided != self.sets:
                self.sets, self.writes = decided, self.writes + 1
                self.show()

    def show(self) -> None:
        for number, each in enumerate(self.sets):
            for desk in list(self.desks.values()):
                desk.see(number, {**each.to_status().to_wire(), "uid": each.uid, "jobUid": ""})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.shards.dealing.SKIPPED_EPOCH_SECONDS", 300.0)


@pytest.fixture
def job() -> Iterator[Job]:
    found = Job()
    yield found
    for desk in list(found.desks.values()):
        desk.stop()


@pytest.fixture
def alone(job: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv(ENV_SHARDS_SOCKET, job.add(0).path)
    return job
