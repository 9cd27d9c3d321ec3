from __future__ import annotations

import select
import time
from collections.abc import Iterator, Mapping
from queue import Queue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.facts.world import (
    WAIT,
    JobView,
    Member,
    next_action,
)
from agent.kube.api import ApiClient, _event, _lines
from agent.kube.watcher import IDLE_SECONDS, Watcher
from controller.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Unauthorized,
    Unavailable,
    error_of,
)
from crds.agent_report import AgentState
from tests.agent.fake_cluster import JOB, NAMESPACE, FakeCluster

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patient")]

JobWatcher = Watcher[JobView]


@pytest.fixture
def watcher(cluster: FakeCluster) -> Iterator[JobWatcher]:
    api = ApiClient.in_cluster(cluster.environ(0))
    watcher = Watcher(api, "elasticworlds", NAMESPACE, JOB, parse=JobView.parse, missing=JobView())
    yield watcher
    watcher.stop()


def wait_phase(watcher: JobWatcher, phase: str, timeout_seconds: float = 300.0) -> float:
    """Seconds until the watcher woke us with that phase."""
    started_at = time.monotonic()
    poll = select.poll()
    poll.register(watcher.fileno(), select.POLLIN)
    while (watcher.take() or JobView()).phase != phase:
        left_seconds = started_at + timeout_seconds - time.monotonic()
        assert left_seconds > 0, f"no {phase}: {watcher.view()}"
        poll.poll(left_seconds * 1000)
    return time.monotonic() - started_at


def test_wakes_with_every_change(cluster: FakeCluster, watcher: JobWatcher) -> None:
    cluster.publish(phase="Pending")
    watcher.start()
    wait_phase(watcher, "Pending")
    cluster.publish(phase="Running")
    assert wait_phase(watcher, "Running") < IDLE_SECONDS, "it was not the next watch that told of it"
    poll = select.poll()
    poll.register(watcher.fileno(), select.POLLIN)
    assert poll.poll(0) == []  # until the next change


def test_who_asks_is_called_with_every_change(cluster: FakeCluster, watcher: JobWatcher) -> None:
    phases: Queue[str] = Queue()
    watcher.call_at_changes(lambda: phases.put((watcher.view() or JobView()).phase))
    cluster.publish(phase="Pending")
    watcher.start()
    assert phases.get(timeout=300) == "Pending"
    cluster.publish(phase="Pending")  # says nothing new
    cluster.publish(phase="Running")
    assert phases.get(timeout=300) == "Running"


def test_goes_on_from_where_it_was_when_the_watch_breaks(cluster: FakeCluster, watcher: JobWatcher) -> None:
    watcher.start()
    cluster.publish(phase="Pending")
    wait_phase(watcher, "Pending")
    cluster.stop()
    cluster.publish(phase="Running")  # missed, but in the history
    cluster.start()
    wait_phase(watcher, "Running")
    assert cluster.lists == 1


def test_lists_anew_when_its_version_is_gone(cluster: FakeCluster, watcher: JobWatcher) -> None:
    watcher.start()
    cluster.publish(phase="Pending")
    wait_phase(watcher, "Pending")
    cluster.stop()
    cluster.publish(phase="Running")
    cluster.expire()
    cluster.start()
    wait_phase(watcher, "Running")
    assert cluster.lists == 2


def test_a_server_that_shuts_down_and_ends_watches_at_once_is_left(
    cluster: FakeCluster, watcher: JobWatcher
) -> None:
    watcher.start()
    cluster.publish(phase="Pending")
    wait_phase(watcher, "Pending")
    cluster.stop(draining=True)
    cluster.publish(phase="Running")
    cluster.start()
    wait_phase(watcher, "Running")


def test_a_watch_whose_connection_is_forgotten_is_opened_anew(
    cluster: FakeCluster,
    watcher: JobWatcher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("agent.kube.watcher.IDLE_SECONDS", 0.5, raising=False)
    watcher.start()
    cluster.publish(phase="Pending")
    wait_phase(watcher, "Pending")
    cluster.wait(lambda: cluster.watches, "the watch")
    cluster.freeze_watches()
    cluster.publish(phase="Running")
    wait_phase(watcher, "Running")
    assert cluster.lists == 1
    assert "silent" not in caplog.text, "a quiet watch is no reason to warn"


def test_survives_a_server_that_errs(cluster: FakeCluster, watcher: JobWatcher) -> None:
    cluster.broken_status = 500
    watcher.start()
    for status in (403, None):
        cluster.wait_refusals(len(cluster.refusals) + 2)
        cluster.broken_status = status
    cluster.publish(phase="Running")
    wait_phase(watcher, "Running")


def test_survives_a_defect_in_what_reads_the_object(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    defects = iter(
        [AttributeError("no such thing"), RecursionError("too deep"), None, OSError("in an event")]
    )

    def parse(world: Mapping[str, Any]) -> JobView:
        if (defect := next(defects, None)) is not None:
            raise defect
        return JobView.parse(world)

    api = ApiClient.in_cluster(cluster.environ(0))
    watcher = Watcher(api, "elasticworlds", NAMESPACE, JOB, parse=parse, missing=JobView())
    cluster.publish(phase="Pending")
    watcher.start()
    wait_phase(watcher, "Pending")
    cluster.publish(phase="Running")
    wait_phase(watcher, "Running")
    assert next(defects, None) is None and watcher.is_alive()
    watcher.stop()
    assert "AttributeError: no such thing" in caplog.text, "with its traceback"


def test_bookmarks_move_the_version_only(cluster: FakeCluster, watcher: JobWatcher) -> None:
    world = {"metadata": {"resourceVersion": "5"}, "spec": {"jobPhase": "Running"}}
    watcher.feed({"type": "ADDED", "object": world})
    watcher.feed({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    assert watcher._resource_version == "9"
    assert watcher.view() == JobView("Running")
    watcher.feed({"type": "DELETED", "object": {"metadata": {"resourceVersion": "10"}}})
    assert watcher.view() == JobView()


def test_a_job_that_is_gone_asks_for_nothing() -> None:
    gone = JobView()  # the kubelet says when to go
    assert next_action(gone.world, Member(0, 1), 3, AgentState.RUNNING, gone.phase) == WAIT


def test_rotated_token_is_read_anew(cluster: FakeCluster) -> None:
    api = ApiClient.in_cluster(cluster.environ(0))
    path = f"/apis/elastic.iml.github.io/v1alpha1/namespaces/{NAMESPACE}/elasticworlds"
    query = {"fieldSelector": f"metadata.name={JOB}"}
    token = cluster.directory / "token"
    good = token.read_text()
    token.write_text("expired")
    with pytest.raises(Unauthorized, match="who are you"):
        api.get(path, query)
    token.write_text(good)
    assert api.get(path, query)["items"]


@pytest.mark.parametrize(
    ("status", "type_"),
    [
        (400, Invalid),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
def test_answers_become_typed_errors(status: int, type_: type[Exception]) -> None:
    refused = error_of(status, b'{"message": "no", "reason": "Because"}')
    assert type(refused) is type_
    assert (refused.status, str(refused), refused.reason) == (status, "no", "Because")


@pytest.mark.parametrize(
    ("line", "type_"),
    [
        (b'{"type": "ERROR", "object": {"code": 410, "message": "too old"}}', Gone),
        (b'{"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}}', Unavailable),
        *((line, Gone) for line in (b"{", b"[]", b"null", b'{"type": "ADDED"}', b"[" * 100_000)),
        (b'{"type": "ADDED", "object": {"metadata": "x"}}', Gone),
    ],
)
def test_an_event_that_tells_nothing_is_an_error(line: bytes, type_: type[Exception]) -> None:
    with pytest.raises(type_):
        _event(line)


@given(st.lists(st.binary(min_size=1).filter(lambda b: b"\n" not in b and b.strip())), st.data())
def test_lines_are_whole_however_the_stream_is_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert list(_lines(chunks)) == lines
