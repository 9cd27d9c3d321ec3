from __future__ import annotations

import select
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from agent.facts.world import WorldView
from agent.kube.api import ApiClient, _event
from agent.kube.watcher import IDLE_SECONDS, PIPE_BYTES, SHORT_SECONDS, Watcher
from controller.errors import ApiError, Gone, SilentWatch, Unauthorized, Unavailable, error_of
from tests.agent.fake_cluster import JOB, NAMESPACE, FakeCluster
from tests.played.schedule import Schedule, play_seeds

JobWatcher = Watcher[WorldView]


class Server:
    """An API server with one object, which tells of changes late, breaks, forgets and shuts down.

    It is the watcher's `Api`, its clock and its stop event: whatever waits lets time pass, in which things change.
    """

    def __init__(self, seed: int, *, changes: float = 0.3) -> None:
        self.schedule = Schedule(seed)
        self.version = self.forgotten = 0
        self.phase = "Pending"
        self.history: list[tuple[int, str]] = []
        self.changes = changes
        self.ends_at = self.schedule.now + 300.0
        self.lists = self.reconnects = self.asked = 0
        self.stop = _Stop(self)

    def clock(self) -> float:
        return self.schedule.now

    def publish(self, phase: str) -> None:
        self.version += 1
        self.phase = phase
        self.history.append((self.version, phase))

    def forget(self) -> None:
        self.forgotten = self.version
        self.history.clear()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with what happens in it."""
        self.schedule.now += seconds
        if self.is_faulty():
            if self.schedule.chance(self.changes):
                self.publish(self.schedule.random.choice(("Pending", "Running", "Failed", "Succeeded")))
            if self.schedule.chance(0.1):
                self.forget()

    def is_faulty(self) -> bool:
        return self.schedule.now < self.ends_at - 200.0

    def _answer(self) -> None:
        self.asked += 1
        self.pass_time(0.01)
        if self.is_faulty() and self.schedule.chance(0.2):
            raise self.schedule.random.choice(
                (Unavailable("reset"), error_of(500, b""), error_of(403, b""), RuntimeError("a defect"))
            )

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        self._answer()
        self.lists += 1
        return {
            "items": [self._world(self.version, self.phase)],
            "metadata": {"resourceVersion": str(self.version)},
        }

    def watch(
        self, path: str, query: Mapping[str, str], *, idle_timeout_seconds: float
    ) -> Iterable[dict[str, Any]]:
        self._answer()
        at = int(query["resourceVersion"])
        if at < self.forgotten:
            raise Gone(410, "Expired", "too old")
        return self._events(at, self.clock() + float(query["timeoutSeconds"]), idle_timeout_seconds)

    def _events(self, at: int, until: float, idle_seconds: float) -> Iterator[dict[str, Any]]:
        heard_at = self.clock()
        while self.clock() < min(until, self.ends_at):
            for version, phase in [each for each in self.history if each[0] > at]:
                at, heard_at = version, self.clock()
                yield {"type": "MODIFIED", "object": self._world(version, phase)}
            if self.is_faulty():
                match self.schedule.random.randrange(12):
                    case 0:
                        raise Unavailable("broken")
                    case 1:
                        return
                    case 2:
                        raise RuntimeError("a defect")
                    case 3:
                        self.schedule.now += idle_seconds
            if at < self.forgotten:
                raise Gone(410, "Expired", "too old")
            if self.clock() - heard_at >= idle_seconds:
                raise SilentWatch("silent")
            if self.schedule.chance(0.1):
                heard_at, at = self.clock(), self.version
                yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}
            self.pass_time(5.0)

    def reconnect(self) -> None:
        self.reconnects += 1

    def silent_seconds(self) -> float:
        return 0.0

    def merge_patch(self, path: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    @staticmethod
    def _world(version: int, phase: str) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": str(version)}, "spec": {"jobPhase": phase}}


class _Stop(threading.Event):
    """The watcher's wait. It is set at the end of the schedule."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def is_set(self) -> bool:
        return self._server.clock() >= self._server.ends_at

    def wait(self, timeout: float | None = None) -> bool:
        self._server.pass_time(timeout or 0.0)
        return self.is_set()


def watcher_of(server: Server) -> JobWatcher:
    return Watcher(
        server,
        "elasticworlds",
        NAMESPACE,
        JOB,
        parse=WorldView.parse,
        missing=WorldView(),
        stop=server.stop,
        monotonic=server.clock,
    )


def play(seed: int) -> list[str]:
    """Play one schedule.

    Whatever breaks, the newest state is seen once the server is well; who asks is called with each change of it; a
    server is asked about as often as there is a reason; the thread lives through defects.
    """
    server = Server(seed)
    watcher, seen, wrong = watcher_of(server), list[str](), list[str]()
    watcher.call_at_changes(lambda: seen.append((watcher.view() or WorldView()).phase))
    watcher.run()
    if (watcher.view() or WorldView()).phase != server.phase:
        wrong.append(f"it sees {watcher.view()}, not {server.phase}")
    if seen[-1:] != [server.phase] or any(a == b for a, b in pairwise(seen)):
        wrong.append(f"who asks is called for {seen}")
    if server.asked > 250:
        wrong.append(f"the server was asked {server.asked} times in 300 s")
    return wrong


@pytest.mark.played
def test_watches() -> None:
    play_seeds(play, 150)


class Script(Server):
    """One that ends watches as it is told; each end is an exception, or None."""

    def __init__(self, *ends: Exception | None) -> None:
        super().__init__(1)
        self.ends_at = self.schedule.now + 10_000.0
        self.ends = list(ends)
        self.watched: list[str] = []

    def is_faulty(self) -> bool:
        return False

    def watch(
        self, path: str, query: Mapping[str, str], *, idle_timeout_seconds: float
    ) -> Iterable[dict[str, Any]]:
        assert idle_timeout_seconds == IDLE_SECONDS
        self.watched.append(query["resourceVersion"])
        if not self.ends:
            self.ends_at = self.clock()
        elif (end := self.ends.pop(0)) is not None:
            raise end
        return []


@pytest.mark.parametrize(
    ("end", "lists", "wait_seconds"),
    [
        (SilentWatch("quiet"), 1, 0.0),
        (Unavailable("broken"), 1, 5.0),
        (error_of(403, b""), 1, 5.0),
        (Gone(410, "Expired", "too old"), 2, 5.0),
        (RecursionError("a defect of ours"), 2, 5.0),
        (None, 2, 5.0),
    ],
    ids=[
        "silent",
        "broken",
        "refused",
        "too old",
        "defect",
        "ended at once, as a server that shuts down does",
    ],
)
def test_a_watch_that_ends_is_opened_again(
    end: ApiError | None, lists: int, wait_seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    server = Script(end)
    watcher_of(server).run()
    assert (server.lists, len(server.watched)) == (lists, 2)
    assert server.clock() - 1_000.0 <= wait_seconds + SHORT_SECONDS
    assert server.reconnects == (1 if end is None else 0) + (0 if server.ends else 1)
    assert ("cannot follow" in caplog.text) is not isinstance(end, SilentWatch)
    assert ("RecursionError: a defect of ours" in caplog.text) is isinstance(end, RecursionError)


def is_readable(watcher: Watcher[WorldView]) -> bool:
    return bool(select.select([watcher], [], [], 0)[0])


def test_a_signal_ends_a_wait_that_its_handler_cannot_end() -> None:
    watcher = watcher_of(Script())
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        with watcher.woken_by_signals():
            assert not is_readable(watcher)
            signal.raise_signal(signal.SIGUSR2)  # its handler has run before the wait
            assert is_readable(watcher)
            watcher.take()
            assert not is_readable(watcher)
        signal.raise_signal(signal.SIGUSR2)
        assert not is_readable(watcher)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_watcher_with_unread_news_takes_any_number() -> None:
    watcher = watcher_of(Script())
    for _ in range(PIPE_BYTES + 1):
        watcher.stop()
    watcher.take()
    assert not is_readable(watcher)


def test_it_wakes_with_changes_alone() -> None:
    watcher = watcher_of(Script())

    def is_woken() -> bool:
        woken = is_readable(watcher)
        watcher.take()
        return woken

    world = {"metadata": {"resourceVersion": "5"}, "spec": {"jobPhase": "Running"}}
    watcher.feed({"type": "ADDED", "object": world})
    assert is_woken() and watcher.take() == WorldView("Running")
    watcher.feed({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    watcher.feed({"type": "MODIFIED", "object": world})
    assert not is_woken()
    watcher.feed({"type": "DELETED", "object": {"metadata": {"resourceVersion": "10"}}})
    assert is_woken() and watcher.view() == WorldView()


@pytest.mark.real
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
