from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.environment import Environment
from agent.facts.failure import LocalFailure
from agent.kube.api import ApiClient
from agent.monitor.stepping import Figures
from agent.report import reporter as reporter_module
from agent.report.elasticworker import RESERVED_REPORTS, sequence_after
from agent.report.report import AgentFacts, ReportBody
from agent.report.reporter import Reporter
from controller.errors import Forbidden, Invalid, NotFound, Unavailable
from crds.agent_report import (
    EARLIER_WORKER,
    LATER_POD,
    LATER_REPORT,
    Accelerators,
    AgentState,
    CheckpointMemory,
    RoundProgress,
    StepProgress,
    Usage,
)
from tests.agent.fake_cluster import FakeCluster
from tests.cli.scripted import Clock

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ME = Environment("job", "default", "job-worker-0", 0, 2, "uid", "10.0.0.1")
FACTS = AgentFacts(1234, 8, Accelerators("nvidia", 8, "NVIDIA H100 80GB HBM3"))


def failure(sequence: int) -> LocalFailure:
    return LocalFailure(
        sequence=sequence,
        round=4,
        rank=17,
        local_rank=1,
        exit_code=-9,
        message="killed",
        log_tail="the log",
        time=NOW,
    )


class FakeApi:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.paths: set[str] = set()
        self.error: Exception | None = None
        self.attempts = 0

    def merge_patch(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        self.attempts += 1
        if self.error is not None:
            raise self.error
        self.paths.add(path)
        self.told.append(patch["status"]["agent"])
        return {}


class Idle(BaseException):
    """The thread waits for longer than it is played."""


class Waits(threading.Condition):
    """Waits by a clock that nothing else moves."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.until = clock, 0.0

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None or self.clock.now + timeout > self.until:
            raise Idle
        self.clock.now += timeout
        return False


class PlayedReporter(Reporter):
    """One whose thread is played."""

    def __init__(self, api: FakeApi, clock: Clock, **options: Any) -> None:
        first = ReportBody(AgentState.READY, NOW)
        options = {"progress_seconds": 0.3, "now": lambda: NOW} | options
        super().__init__(api, ME, FACTS, first, **options)  # type: ignore[arg-type]
        self._changed = self.waits = Waits(clock)
        self._stop_event.wait = self.waits.wait  # type: ignore[method-assign]

    def go_on(self, seconds: float = 0.0) -> bool:
        """Do what the thread does in this time; return whether it goes on after it."""
        self.waits.until = self.waits.clock.now + seconds
        try:
            self.run()
        except Idle:
            self.waits.clock.now = self.waits.until
            return True
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(reporter_module, "time", found)
    return found


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def reporter(api: FakeApi, clock: Clock) -> PlayedReporter:
    return PlayedReporter(api, clock)


def test_after_an_outage_only_what_matters_is_told(api: FakeApi, reporter: PlayedReporter) -> None:
    api.error = Unavailable("away")
    reporter.go_on()
    for round_ in range(1, 20):
        reporter.report(AgentState.RUNNING, round_)
    reporter.report(AgentState.FAILED, failure=failure(1))
    reporter.report(AgentState.READY, 20)
    reporter.report(AgentState.FAILED, failure=failure(2))
    reporter.report(AgentState.RUNNING, 21)
    reporter.go_on(60.0)
    assert not api.told and api.attempts > 2
    api.error = None
    reporter.go_on()
    told = [(r["state"], r["observedRound"], (r["failure"] or {}).get("sequence")) for r in api.told]
    assert told[-2:] == [("Ready", 20, 1), ("Running", 21, 2)]
    assert len(told) <= 3


def saved(api: FakeApi) -> int | None:
    """The checkpoint that the last write has told of."""
    found: int | None = (api.told[-1]["progress"] or {}).get("checkpointStep")
    return found


def test_whatever_else_is_told_tells_of_the_newest_checkpoint_and_step(api: FakeApi, clock: Clock) -> None:
    reporter, newest = PlayedReporter(api, clock, progress_seconds=600.0), 1
    told = RoundProgress(1, 5, 7, 2.0)
    reporter._figures = lambda: Figures(StepProgress(newest, NOW, newest), (told,))
    reporter.checkpoint()
    reporter.go_on()
    for newest, state, round_ in (
        (2, AgentState.FAILED, 1),
        (3, AgentState.READY, 1),
        (4, AgentState.RUNNING, 2),
    ):
        reporter.checkpoint()  # not yet, for its own sake
        reporter.report(state, round_, failure(1) if state is AgentState.FAILED else None)
        reporter.go_on()
        assert saved(api) == newest == api.told[-1]["progress"]["step"]
        assert api.told[-1]["rounds"] == [told.to_wire()]
    reporter._figures = lambda: Figures(None, (told,))
    reporter.report(AgentState.RUNNING, 3)
    reporter.go_on()
    assert saved(api) == newest, "the new processes told nothing yet"


def test_each_attempt_has_a_higher_number_than_those_that_may_still_arrive(
    api: FakeApi, clock: Clock
) -> None:
    before = {"incarnation": ME.incarnation, "podUid": "another Pod of it", "sequence": 7}
    reporter = PlayedReporter(api, clock, sequence=sequence_after(before, ME))
    api.error = Unavailable("the API server does not answer")
    reporter.go_on(10.0)
    api.error = Invalid(422, "Invalid", f'status: Invalid value: "object": {LATER_REPORT}')
    reporter.go_on(10.0)  # of another Pod of this incarnation, until the status names this one
    api.error = None
    reporter.go_on(10.0)
    attempts = api.attempts - 1
    assert attempts > 0 and api.told[-1]["sequence"] == 8 + RESERVED_REPORTS + attempts
    assert sequence_after(before | {"incarnation": ME.incarnation - 1}, ME) == 0


@pytest.mark.real
def test_flush_waits_for_all_that_is_written_and_for_no_worker_that_was_deleted(api: FakeApi) -> None:
    reporter = Reporter(api, ME, FACTS, ReportBody(AgentState.READY, NOW), progress_seconds=600.0)  # type: ignore[arg-type]
    assert not reporter.flush(300), "it has not begun"
    reporter.start()
    reporter.report(AgentState.RUNNING, 1)
    assert reporter.flush(300) and api.told[-1]["state"] == "Running"
    api.error = NotFound(404, "", "not found")
    reporter.report(AgentState.READY, 1)
    began = time.monotonic()
    assert not reporter.flush(600)
    assert time.monotonic() - began < 300
    reporter.stop()
    reporter.join(300)


@pytest.mark.parametrize(
    "error",
    [
        Forbidden(403, "", "only the Pod job-worker-0-3 may report for this ElasticWorker"),
        Invalid(422, "Invalid", f'status.agent: Invalid value: "object": {LATER_POD}'),
        Invalid(422, "Invalid", f'Invalid value: "object": {EARLIER_WORKER}'),
    ],
)
def test_what_is_refused_for_good_is_said_once_and_not_tried_again(
    api: FakeApi, clock: Clock, error: Exception
) -> None:
    refused: list[str] = []
    reporter = PlayedReporter(api, clock, on_final_refusal=lambda: refused.append("refused"))
    api.error = error
    assert not reporter.go_on()
    assert refused == ["refused"] and api.attempts == 1


@pytest.mark.real
@pytest.mark.usefixtures("patient")
def test_what_is_sent_is_utf8_whatever_the_texts(cluster: FakeCluster) -> None:
    client = ApiClient.in_cluster(cluster.environ(0))
    path = "/apis/elastic.iml.github.io/v1alpha1/namespaces/default/elasticworkers/job-worker-0/status"
    client.merge_patch(path, {"status": {"agent": {"address": "host-\udcff", "note": "Größe"}}})
    assert cluster.agent(0) == {"address": "host-?", "note": "Größe"}


class PickyApi(FakeApi):
    """Finds fault with a section, as the CRD's schema does."""

    def __init__(self, refused: str, named: bool) -> None:
        super().__init__()
        self._refused, self._named = refused, named

    def merge_patch(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        agent = patch["status"]["agent"]
        value = agent[self._refused]
        if value and (self._refused != "failure" or value["message"] == "killed"):
            field = f"status.agent.{self._refused}.message" if self._named else ""
            cause = {"field": field, "message": "Too long", "reason": "FieldValueTooLong"}
            raise Invalid(422, "Invalid", "is invalid: Too long", {"causes": [cause]})
        return super().merge_patch(path, patch)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("section", ["failure", "memory", "usage"])
def test_a_refused_section_mutes_no_agent(
    caplog: pytest.LogCaptureFixture, clock: Clock, section: str, named: bool
) -> None:
    api = PickyApi(section, named)
    sections = {"usage": lambda: Usage(1.0, 5), "memory": lambda: CheckpointMemory(step=1)}
    reporter = PlayedReporter(api, clock, sections=sections)
    reporter.report(AgentState.FAILED, 4, failure(1))
    reporter.report(AgentState.READY, 4)
    reporter.report(AgentState.FAILED, 5, failure(2))
    reporter.report(AgentState.READY, 6)
    reporter.go_on()
    last = api.told[-1]
    assert (last["state"], last["observedRound"], last["failure"]["sequence"]) == ("Ready", 6, 2)
    assert next(told["failure"]["sequence"] for told in api.told if told["failure"]) == 1, "each is counted"
    assert (
        last["memory"] == (None if section == "memory" else CheckpointMemory(step=1).to_wire()) or not named
    )
    assert f"{section}" in caplog.text and "it is refused: is invalid: Too long" in caplog.text


def test_a_defect_in_one_section_ends_no_reports(
    api: FakeApi, reporter: PlayedReporter, caplog: pytest.LogCaptureFixture
) -> None:
    reporter._sections = {"memory": lambda: {}["step"]}
    reporter._figures = lambda: {}["figures"]
    reporter.report(AgentState.RUNNING, 1)
    reporter.report(AgentState.READY, 1)
    assert reporter.go_on()
    assert (api.told[-1]["state"], api.told[-1]["memory"]) == ("Ready", None)
    assert caplog.text.count("reports go on without memory, which cannot be made") == 1


def test_a_defect_of_the_client_is_tried_again(
    api: FakeApi, reporter: PlayedReporter, caplog: pytest.LogCaptureFixture
) -> None:
    api.error = AttributeError("no such thing")
    reporter.report(AgentState.RUNNING, 1)
    assert reporter.go_on(60.0) and api.attempts > 1
    api.error = None
    assert reporter.go_on() and api.told[-1]["state"] == "Running"
    assert "AttributeError: no such thing" in caplog.text
