from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import astuple
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent.environment import Environment
from agent.facts.failure import Failure
from agent.kube.api import ApiClient
from agent.monitor import accelerators
from agent.monitor.stepping import Figures
from agent.report.report import Facts, Report, whole
from agent.report.reporter import Reporter
from controller.errors import Forbidden, Invalid, NotFound, Unavailable
from crds.agent_report import (
    Accelerators,
    AgentReport,
    AgentState,
    CheckpointMemory,
    Resumed,
    RoundProgress,
    StepProgress,
    Usage,
)
from crds.checkpoint_files import Tier
from tests.agent.fake_cluster import FakeCluster

pytestmark = pytest.mark.real

READER = TypeAdapter(AgentReport)
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ME = Environment("job", "default", "job-worker-0", 0, 2, "uid", "10.0.0.1")
FACTS = Facts(1234, 8, Accelerators("nvidia", 8, "NVIDIA H100 80GB HBM3"))


def failure(sequence: int) -> Failure:
    return Failure(
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
        self.away = threading.Event()
        self.deleted = False
        self.refusal = ""
        self.attempts = threading.Semaphore(0)

    def merge_patch(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        try:
            if self.away.is_set():
                raise Unavailable("away")
            if self.deleted:
                raise NotFound(404, "", "not found")
            if self.refusal:
                raise Forbidden(403, "", self.refusal)
            self.paths.add(path)
            self.told.append(patch["status"]["agent"])
            return {}
        finally:
            self.attempts.release()  # whoever waits for it looks at `told`


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def reporter(api: FakeApi) -> Iterator[Reporter]:
    reporter = Reporter(
        api,  # type: ignore[arg-type]
        ME,
        FACTS,
        Report(AgentState.READY, NOW),
        progress_seconds=0.3,
        now=lambda: NOW,
    )
    yield reporter
    reporter.stop()
    if reporter.is_alive():
        reporter.join(300)


@given(
    st.sampled_from(AgentState),
    st.integers(0, 9),
    st.none() | st.builds(failure, st.integers(1, 9)),
    st.none()
    | st.builds(
        StepProgress,
        st.integers(0, 9),
        st.just(NOW),
        st.none() | st.integers(0, 9),
        st.none() | st.floats(0, 9),
    ),
    st.lists(
        st.builds(
            lambda round_, first, more, seconds: RoundProgress(round_, first, first + more, seconds),
            *[st.integers(0, 9)] * 3,
            st.floats(0, 9),
        ),
        max_size=8,
    ),
)
def test_what_is_written_is_what_the_crd_takes(
    state: AgentState,
    round_: int,
    failed: Failure | None,
    progress: StepProgress | None,
    rounds: list[RoundProgress],
) -> None:
    report = Report(state, NOW, round_, failed, progress, tuple(rounds))
    facts = Facts(1234, 8, accelerators.detect())
    written = whole(ME, facts, report, {}).to_wire()
    read = READER.validate_python(written)
    # Nothing is lost on the way, and nothing is unknown (it would be pruned).
    assert read.to_wire() == written
    assert (read.progress and read.progress.checkpoint_step) == (progress and progress.checkpoint_step)
    for said, known in zip(read.rounds, rounds, strict=True):
        assert astuple(said) == pytest.approx(astuple(known))
    assert read.accelerators == facts.accelerators
    assert read.observed_round == round_
    assert read.since == NOW


def test_what_memory_holds_goes_along_and_is_what_the_crd_takes(api: FakeApi, reporter: Reporter) -> None:
    held = CheckpointMemory(12, 11, 4, Resumed(3, Tier.PEER, 7))
    reporter._sections["memory"] = lambda: held
    reporter.start()
    reporter.report(AgentState.RUNNING, 3)
    assert reporter.flush(300)
    memory = READER.validate_python(api.told[-1]).memory
    assert memory == held


def test_changes_are_told_at_once(api: FakeApi, reporter: Reporter) -> None:
    reporter.start()
    reporter.report(AgentState.RUNNING, 1)
    assert reporter.flush(300)
    assert api.paths == {
        "/apis/elastic.iml.github.io/v1alpha1/namespaces/default/elasticworkers/job-worker-0/status"
    }
    assert api.told[-1]["state"] == "Running"
    assert api.told[-1]["observedRound"] == 1


def test_after_an_outage_only_what_matters_is_told(api: FakeApi, reporter: Reporter) -> None:
    api.away.set()
    reporter.start()
    for round_ in range(1, 20):
        reporter.report(AgentState.RUNNING, round_)
    reporter.report(AgentState.FAILED, failure=failure(1))
    reporter.report(AgentState.READY, 20)
    reporter.report(AgentState.FAILED, failure=failure(2))
    reporter.report(AgentState.RUNNING, 21)
    assert not reporter.flush(0.1)
    api.away.clear()
    assert reporter.flush(300)
    told = [(r["state"], r["observedRound"], (r["failure"] or {}).get("sequence")) for r in api.told]
    assert told[-2:] == [("Ready", 20, 1), ("Running", 21, 2)]
    assert len(told) <= 3


def saved(api: FakeApi) -> list[int | None]:
    """The checkpoints that the writes have told of."""
    return [(each["progress"] or {}).get("checkpointStep") for each in api.told]


def wait_saved(api: FakeApi, step: int) -> None:
    while step not in saved(api):
        assert api.attempts.acquire(timeout=300)


def test_whatever_else_is_told_tells_of_the_newest_checkpoint(api: FakeApi, reporter: Reporter) -> None:
    newest = 1
    reporter._outbox.progress_seconds = 600.0
    reporter._figures = lambda: Figures(StepProgress(newest, NOW, newest))
    reporter.start()
    reporter.checkpoint()
    wait_saved(api, 1)
    for step, state, round_ in (
        (2, AgentState.FAILED, 1),
        (3, AgentState.READY, 1),
        (4, AgentState.RUNNING, 2),
    ):
        newest = step
        reporter.checkpoint()  # not yet, for its own sake
        reporter.report(state, round_, failure(1) if state is AgentState.FAILED else None)
        assert reporter.flush(300)
        assert saved(api)[-1] == step
    newest = 5
    reporter.checkpoint()
    assert reporter.flush(300), "the last word"
    assert saved(api)[-1] == 5


def test_every_report_says_how_far_training_is_then(api: FakeApi, reporter: Reporter) -> None:
    reporter.start()
    told = RoundProgress(1, 5, 7, 2.0)
    reporter._figures = lambda: Figures(StepProgress(7, NOW), (told,))
    reporter.report(AgentState.FAILED, failure=failure(1))
    assert reporter.flush(300)
    assert api.told[-1]["progress"]["step"] == 7
    assert api.told[-1]["rounds"] == [told.to_wire()]
    reporter._figures = lambda: Figures(None, (told,))
    reporter.report(AgentState.RUNNING, 2)
    assert reporter.flush(300)
    assert api.told[-1]["progress"]["step"] == 7, "the new processes told nothing yet"


def test_news_while_a_report_is_written_is_told_after_it(api: FakeApi, reporter: Reporter) -> None:
    step = 1
    reporter._figures = lambda: Figures(StepProgress(step, NOW))

    class News(FakeApi):
        def merge_patch(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
            nonlocal step
            if step == 1:
                step = 2
                reporter.progress(within_seconds=0.0)
            return api.merge_patch(path, patch)

    reporter._api = News()  # type: ignore[assignment]
    reporter.start()
    while (api.told[-1:] or [{"progress": None}])[0]["progress"] != StepProgress(2, NOW).to_wire():
        assert api.attempts.acquire(timeout=300)


def test_every_write_says_what_the_pod_uses_now(api: FakeApi) -> None:
    used = [None, Usage(1.5, 2**30), Usage(0.5, 2**20)]
    reporter = Reporter(
        api,  # type: ignore[arg-type]
        ME,
        FACTS,
        Report(AgentState.READY, NOW),
        progress_seconds=0.0,
        sections={"usage": lambda: used.pop(0)},
    )
    reporter.start()
    for state in (AgentState.RUNNING, AgentState.SUCCEEDED):
        assert reporter.flush(300)
        reporter.report(state)
    assert reporter.flush(300)
    reporter.stop()
    told = [each["usage"] for each in api.told]
    assert told[0] is None
    assert [(u["cpuCores"], u["memoryBytes"]) for u in told[1:]] == [(1.5, 2**30), (0.5, 2**20)]


def test_since_is_when_the_state_began(api: FakeApi, reporter: Reporter) -> None:
    later = datetime(2027, 1, 1, tzinfo=UTC)
    reporter.report(AgentState.RUNNING, 1)
    reporter._now = lambda: later
    reporter.report(AgentState.RUNNING, 1)
    assert reporter.latest.since == NOW
    reporter.report(AgentState.RUNNING, 2)
    assert reporter.latest.since == later, "another round's processes run"
    reporter.report(AgentState.FAILED, failure=failure(1))
    assert reporter.latest.since == later


def test_flush_of_a_reporter_that_never_began_does_not_wait(reporter: Reporter) -> None:
    assert not reporter.flush(300)


def test_flush_does_not_wait_for_a_worker_that_was_deleted(api: FakeApi, reporter: Reporter) -> None:
    api.deleted = True
    reporter.start()
    began = time.monotonic()
    assert not reporter.flush(600)
    assert time.monotonic() - began < 300


def test_what_is_refused_for_good_is_said_once_and_not_tried_again(api: FakeApi) -> None:
    refused = threading.Event()
    reporter = Reporter(
        api,  # type: ignore[arg-type]
        ME,
        FACTS,
        Report(AgentState.READY, NOW),
        progress_seconds=0.0,
        on_final_refusal=refused.set,
    )
    api.refusal = "only the Pod job-worker-0-3 may report for this ElasticWorker"
    reporter.start()
    assert not reporter.flush(300)
    reporter.join(300)
    assert not reporter.is_alive()
    assert refused.is_set()
    reporter.report(AgentState.STOPPED)
    assert not reporter.flush(300)
    assert api.attempts.acquire(timeout=1)
    assert not api.attempts.acquire(blocking=False), "one attempt"


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
    caplog: pytest.LogCaptureFixture, section: str, named: bool
) -> None:
    api = PickyApi(section, named)
    reporter = Reporter(
        api,  # type: ignore[arg-type]
        ME,
        FACTS,
        Report(AgentState.READY, NOW),
        progress_seconds=0.3,
        sections={"usage": lambda: Usage(1.0, 5), "memory": lambda: CheckpointMemory(step=1)},
    )
    reporter.start()
    reporter.report(AgentState.FAILED, 4, failure(1))
    reporter.report(AgentState.READY, 4)
    reporter.report(AgentState.FAILED, 5, failure(2))
    reporter.report(AgentState.READY, 6)
    try:
        assert reporter.flush(300)
    finally:
        reporter.stop()
    last = api.told[-1]
    assert (last["state"], last["observedRound"], last["failure"]["sequence"]) == ("Ready", 6, 2)
    assert next(told["failure"]["sequence"] for told in api.told if told["failure"]) == 1, "each is counted"
    assert (
        last["memory"] == (None if section == "memory" else CheckpointMemory(step=1).to_wire()) or not named
    )
    assert f"{section}" in caplog.text and "it is refused: is invalid: Too long" in caplog.text


def test_a_defect_in_one_section_ends_no_reports(
    api: FakeApi, reporter: Reporter, caplog: pytest.LogCaptureFixture
) -> None:
    reporter._sections["memory"] = lambda: {}["step"]
    reporter._figures = lambda: {}["figures"]
    reporter.start()
    reporter.report(AgentState.RUNNING, 1)
    reporter.report(AgentState.READY, 1)
    assert reporter.flush(300) and reporter.is_alive()
    assert (api.told[-1]["state"], api.told[-1]["memory"]) == ("Ready", None)
    assert caplog.text.count("reports go on without memory, which cannot be made") == 1


def test_a_defect_of_the_client_is_tried_again(
    api: FakeApi, reporter: Reporter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([AttributeError("no such thing"), AttributeError("no such thing")])
    real = api.merge_patch

    def patch(path: str, patch: dict[str, Any]) -> dict[str, Any]:
        if (error := next(answers, None)) is not None:
            raise error
        return real(path, patch)

    monkeypatch.setattr(api, "merge_patch", patch)
    reporter.start()
    reporter.report(AgentState.RUNNING, 1)
    assert reporter.flush(300)
    assert api.told[-1]["state"] == "Running"
    assert caplog.text.count("AttributeError: no such thing") == 1, "with its traceback, once"
