from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from agent.environment import Environment
from agent.report.heartbeat import MAX_WAIT_SECONDS, LeaseRenewal
from controller.errors import Unavailable, error_of

PERIOD_SECONDS = 2.0
ME = Environment(
    "job", "default", "job-worker-0-1", 0, 1, "uid", "10.0.0.2", heartbeat_seconds=PERIOD_SECONDS
)


class Server(threading.Event):
    """An API server, and the heart's clock: it is what it waits with, for so many seconds in all."""

    def __init__(self, seconds: float, answers: Mapping[int, Exception] | None = None) -> None:
        super().__init__()
        self.seconds, self.answers = seconds, answers or {}
        self.now = 0.0
        self.asked_at: list[float] = []
        self.renewed_at: list[float] = []
        self.bodies: list[Mapping[str, Any]] = []

    def is_set(self) -> bool:
        return self.now >= self.seconds

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()

    def merge_patch(self, path: str, patch: Mapping[str, Any]) -> None:
        self.asked_at.append(self.now)
        if (error := self.answers.get(len(self.asked_at) - 1)) is not None:
            raise error
        self.renewed_at.append(self.now)
        self.bodies.append(patch)

    def beat(self) -> Server:
        LeaseRenewal(self, ME, self, lambda: self.now).run()  # type: ignore[arg-type]
        return self


def test_it_renews_at_once_and_then_as_often_as_agreed() -> None:
    server = Server(60.0).beat()
    assert server.renewed_at == [PERIOD_SECONDS * beat for beat in range(30)]
    assert server.bodies[0]["spec"].keys() == {"holderIdentity", "renewTime"}  # the rest is the controller's


def test_it_renews_soon_after_the_api_server_is_back() -> None:
    away = dict.fromkeys(range(3, 40), Unavailable("away"))
    server = Server(120.0, away).beat()
    back_at = server.asked_at[39]
    assert min(at for at in server.renewed_at if at > back_at) - back_at <= MAX_WAIT_SECONDS
    beats = [at for at in server.renewed_at if at > back_at]
    assert all(after - before >= PERIOD_SECONDS - 1e-6 for before, after in pairwise(beats)), (
        "none is caught up"
    )


def test_a_defect_ends_no_renewals() -> None:
    server = Server(
        60.0, {0: AttributeError("no such thing"), 2: RuntimeError("can't start new thread")}
    ).beat()
    assert len(server.renewed_at) > 20


def test_who_is_refused_for_good_ends() -> None:
    server = Server(60.0, {3: error_of(404, b"")}).beat()
    assert len(server.renewed_at) > 20, "it may only be late"
