"""Lists that a watch keeps up: what is asked of the API server, and that nothing old is shown for new."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dlr.dashboard import watching
from dlr.dashboard.watching import WatchingApi, take_in
from dlr.kube import api as commands_api
from dlr.kube.api import ELASTICWORKERS, Api
from dlr.kube.connection import connect
from dlr.kube.errors import ApiError
from tests.cli.scripted import Answer, Request, ScriptedServer, kubeconfig_for, listing, refusal, worker
from tests.dashboard.conftest import WAIT_SECONDS, WITHIN

pytestmark = pytest.mark.real

JSON = dict[str, Any]
WORKERS = f"GET {WITHIN}/elasticworkers"
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}


def event(type_: str, index: int, **status: Any) -> JSON:
    return {"type": type_, "object": worker(index, **status)}


class Workers:
    """A scripted collection: what a list gives, and one watch after the other."""

    def __init__(self, *items: JSON) -> None:
        self.items = list(items)
        self.lists = 0
        self.watches: list[Request] = []
        self.refused: dict[str, Answer] = {}
        """By `list` and `watch`."""
        self.kept_back: threading.Event | None = None
        """Until when no watch's answer begins."""
        self._open: list[queue.Queue[Any]] = []

    def answer(self, request: Request) -> Answer:
        if "watch" not in request.query:
            self.lists += 1
            return self.refused.get("list") or Answer(200, listing(*self.items))
        self._open.append(queue.Queue())
        self.watches.append(request)
        if self.kept_back:
            self.kept_back.wait(WAIT_SECONDS)
        return self.refused.get("watch") or Answer(200, iter(self._open[-1].get, None))

    def tell(self, line: Any) -> None:
        """In the watch that was opened last; None ends it."""
        until(lambda: bool(self.watches))
        self._open[-1].put(line)

    def close(self) -> None:
        for each in self._open:
            each.put(None)


@pytest.fixture
def workers() -> Iterator[Workers]:
    scripted = Workers(worker(0), worker(1))
    yield scripted
    scripted.close()


@pytest.fixture
def api(workers: Workers, tmp_path: Path) -> Iterator[WatchingApi]:
    server = ScriptedServer()
    server.answers[WORKERS] = workers.answer
    config = tmp_path / "kubeconfig"
    config.write_text(yaml.safe_dump(kubeconfig_for(server.url)))
    watching_api = WatchingApi(Api(connect(str(config), None, None)))
    yield watching_api
    watching_api.forget()
    server.close()


def phases(api: WatchingApi) -> JSON:
    found = api.find(ELASTICWORKERS, label_selector="app=x")
    return {each["metadata"]["name"][-1]: each["status"]["phase"] for each in found}


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def no_watch_is_open() -> Callable[[], bool]:
    """Of those that the test opens: another's may still wait for a server that is gone."""
    before = set(threading.enumerate())
    return lambda: all(thread.name != "dlr-watch" for thread in set(threading.enumerate()) - before)


def test_changes_are_told_by_the_watch_and_not_by_further_lists(api: WatchingApi, workers: Workers) -> None:
    assert phases(api) == {"0": "Running", "1": "Running"}
    for told in (event("MODIFIED", 0, phase="Failed"), event("DELETED", 1), event("ADDED", 2)):
        workers.tell(told)
    until(lambda: phases(api) == {"0": "Failed", "2": "Running"})
    workers.tell({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    workers.tell(event("ADDED", 1, phase="Pending"))
    until(lambda: list(phases(api)) == ["0", "1", "2"])  # in the order of a list
    (asked,) = workers.watches
    assert workers.lists == 1
    assert asked.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "1",
        "timeoutSeconds": f"{watching.WATCH_SECONDS}",
        "labelSelector": "app=x",
    }


@pytest.mark.parametrize("last", [None, GONE, {"type": "ADDED"}, [], "x"])
def test_after_a_watch_that_is_over_for_whatever_reason_all_is_listed_again(
    api: WatchingApi, workers: Workers, last: Any
) -> None:
    phases(api)
    workers.items = [worker(0, phase="Succeeded")]
    workers.tell(last)
    until(lambda: phases(api) == {"0": "Succeeded"})
    until(lambda: len(workers.watches) == 2)
    workers.tell(event("ADDED", 4))
    until(lambda: phases(api) == {"0": "Succeeded", "4": "Running"})
    assert workers.lists == 2


def test_who_may_list_and_not_watch_sees_each_change_all_the_same(api: WatchingApi, workers: Workers) -> None:
    workers.refused["watch"] = refusal(403, "Forbidden", "elasticworkers is forbidden: no watch")
    phases(api)
    for phase in ("Pending", "Failed"):
        workers.items = [worker(0, phase=phase)]
        until(lambda phase=phase: phases(api) == {"0": phase})
    assert len(workers.watches) == 1


def test_watch_whose_answer_a_proxy_keeps_back_does_not_make_old_what_is_seen(
    api: WatchingApi, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands_api, "REQUEST_TIMEOUT_SECONDS", 0.5)
    workers.kept_back = threading.Event()
    try:
        phases(api)
        workers.items = [worker(0, phase="Failed")]
        until(lambda: phases(api) == {"0": "Failed"})
    finally:
        workers.kept_back.set()


def test_what_can_no_longer_be_listed_is_not_shown_as_it_was(api: WatchingApi, workers: Workers) -> None:
    phases(api)
    workers.refused["list"] = Answer(500, "gone\n")
    workers.tell(None)
    with pytest.raises(ApiError, match="gone"):
        until(lambda: not phases(api))
    with pytest.raises(ApiError, match="gone"):
        phases(api)
    workers.refused.clear()
    assert phases(api) == {"0": "Running", "1": "Running"}


def test_more_news_than_a_list_has_end_the_watch(
    api: WatchingApi, workers: Workers, no_watch_is_open: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LEAST_BACKLOG", 3)
    phases(api)
    workers.items = [worker(9)]
    for number in range(4):
        workers.tell(event("MODIFIED", 0, phase=f"{number}"))
    until(no_watch_is_open)
    until(lambda: phases(api) == {"9": "Running"})


def test_what_was_kept_is_forgotten_with_its_watch(api: WatchingApi, workers: Workers) -> None:
    phases(api)
    workers.items = [worker(9)]
    api.forget()
    assert phases(api) == {"9": "Running"}
    assert workers.lists == 2


def test_watch_that_nobody_wants_any_more_is_hung_up_though_it_is_silent(
    api: WatchingApi, workers: Workers, no_watch_is_open: Callable[[], bool]
) -> None:
    phases(api)
    until(lambda: bool(workers.watches))
    api.forget()
    until(no_watch_is_open)


def test_server_that_vanished_shows_although_watches_and_logs_are_silent(api: WatchingApi) -> None:
    connections = api._client._pool.connection_from_url(api.connection.server)
    connection = connections._get_conn()
    connection.connect()
    assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
    connection.close()


names = st.integers(0, 3)
news = st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), names, st.integers(0, 9)))


@given(news)
def test_objects_are_what_the_events_made_of_them(told: list[tuple[str, int, int]]) -> None:
    objects: watching.Objects = {}
    expected: dict[tuple[str, str], int] = {}
    for type_, index, count in told:
        expected[("default", f"digits-worker-{index}")] = count
        if type_ == "DELETED":
            del expected[("default", f"digits-worker-{index}")]
    take_in((event(type_, index, restarts=count) for type_, index, count in told), objects)
    assert {key: each["status"]["restarts"] for key, each in objects.items()} == expected
