"""Pages that are read again and again: through troubles, once at a time, and only while somebody looks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from dlr.dashboard import feed as module
from dlr.dashboard.feed import Feed, pause_seconds
from dlr.dashboard.reading import FleetView, JobView
from dlr.kube.api import Api
from dlr.kube.connection import connect
from dlr.kube.errors import ApiError
from tests.cli.scripted import JSON, PODS, WORKERS, Answer, Script, pod, refusal, worker
from tests.cli.troubled import troubled_job
from tests.dashboard.conftest import JOB, show_troubled

pytestmark = pytest.mark.played


class Readings:
    """What threads would read; each when it begins, unless they are held back."""

    def __init__(self) -> None:
        self.begun = 0
        self.held: list[Callable[[], None]] | None = None

    def begin(self, work: Callable[[], Any]) -> Future[Any]:
        self.begun += 1
        done = Future[Any]()
        done.set_running_or_notify_cancel()  # as a thread does, which no caller can cancel
        if self.held is None:
            done.set_result(work())
        else:
            self.held.append(lambda: done.set_result(work()))
        return done


@pytest.fixture(autouse=True)
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    made = Readings()
    monkeypatch.setattr(module, "thread_of", made.begin)
    still = SimpleNamespace(monotonic=lambda: 0.0, time=lambda: 0.0, thread_time=lambda: 0.0)
    monkeypatch.setattr(module, "time", still)
    return made


@pytest.fixture
def api(server: Script) -> Api:
    show_troubled(server)
    return Api(connect(None, None, None))


class Page:
    """A view whose content is a number, infinite or broken."""

    def __init__(self, read: Callable[[], float] = lambda: 1.0) -> None:
        self._read = read

    def read(self) -> JSON:
        return {"number": self._read()}


def broken() -> float:
    raise RuntimeError("a defect")


async def told(updates: Any) -> JSON:
    found: JSON = json.loads((await anext(updates)).body, parse_constant=pytest.fail)
    return found


async def test_job_that_is_deleted_while_it_is_shown_says_so_and_stays(server: Script, api: Api) -> None:
    async with aclosing(Feed(JobView(api, "digits")).updates()) as updates:
        assert (await told(updates))["trouble"] is None
        server.answers["GET /api/v1/namespaces/default"] = {"metadata": {"name": "default"}}
        server.answers[JOB] = refusal(404, "NotFound", "no", name="digits")
        deleted = await told(updates)
        assert deleted["trouble"].startswith("There is no ElasticJob 'digits' in namespace 'default'")
        assert deleted["page"]["name"] == "digits"
        again = troubled_job()
        again["metadata"]["uid"] = "another"
        server.answers[JOB] = again
        back = await told(updates)
        assert (back["trouble"], back["page"]["uid"]) == (None, "another")


async def test_no_api_server_at_all_is_a_sentence(server: Script, api: Api) -> None:
    server.is_away = True
    async with aclosing(Feed(FleetView(api, all_namespaces=False)).updates()) as updates:
        away = await told(updates)
    assert away["page"] is None
    assert away["trouble"].startswith(f"No API server answers at {server.url}")


async def test_defect_in_a_page_is_told_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with aclosing(Feed(Page(broken)).updates()) as updates:
        for _ in range(2):
            assert "dlr cannot make this page (RuntimeError" in (await told(updates))["trouble"]
    assert len(caplog.records) == 1


async def test_number_that_is_infinite_breaks_no_page() -> None:
    """Browsers read no `Infinity`, and a worker's step times may be so far apart."""
    async with aclosing(Feed(Page(lambda: 1e300 * 1e300)).updates()) as updates:
        assert (await told(updates))["page"] == {"number": None}


async def test_nobody_asks_the_api_server_while_nobody_looks(readings: Readings) -> None:
    async with aclosing(Feed(Page()).updates()) as updates:
        await told(updates)
    await asyncio.sleep(100)
    assert readings.begun == 1


async def test_a_page_that_is_loaded_again_and_again_is_read_once_at_a_time(readings: Readings) -> None:
    readings.held, feed = [], Feed(Page())
    for _ in range(5):
        updates = feed.updates()
        first = asyncio.create_task(anext(updates))
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await updates.aclose()
    assert readings.begun == 1
    (end,), readings.held = readings.held, None
    end()
    async with aclosing(feed.updates()) as updates:
        assert (await told(updates))["page"]


@pytest.mark.parametrize(
    ("cpu_seconds", "took_seconds", "pause"),
    [(0.01, 0.01, 0.99), (0.09, 0.2, 0.8), (0.5, 1.0, 4.0), (60.0, 60.0, 30.0), (0.05, 8.0, 8.0)],
)
def test_a_large_page_is_made_less_often_and_a_slow_api_server_asked_half_of_the_time(
    cpu_seconds: float, took_seconds: float, pause: float
) -> None:
    assert pause_seconds(cpu_seconds, took_seconds, in_trouble=False) == pytest.approx(pause)
    assert pause_seconds(cpu_seconds, took_seconds, in_trouble=True) == 3.0


def test_who_may_not_read_all_namespaces_is_told_how_to_see_one(server: Script, api: Api) -> None:
    path = "/apis/elastic.iml.github.io/v1alpha1/elasticjobs"
    server.answers[f"GET {path}"] = refusal(
        403, "Forbidden", "elasticjobs is forbidden: at the cluster scope"
    )
    with pytest.raises(ApiError, match=r"at the cluster scope. Of one namespace: dlr dashboard -n NAMESPACE"):
        FleetView(api, all_namespaces=True).read()


def test_credentials_that_have_expired_are_got_anew(server: Script, api: Api) -> None:
    server.answers[JOB] = [Answer(401, "no\n"), troubled_job()]
    assert JobView(api, "digits").read()["name"] == "digits"


def test_log_of_a_rank_is_its_end_or_why_its_pod_does_not_start(server: Script, api: Api) -> None:
    name, late = "digits-worker-2-2", "digits-worker-1"
    lines = "2026-01-01T00:00:01Z [rank2]: [rank2]: <b>no</b>\n2026-01-01T00:00:02Z two\n"
    server.answers |= {
        f"GET {PODS}/{name}": pod(name),
        f"GET {PODS}/{name}/log": lines,
        f"GET {PODS}/{late}-1": pod(f"{late}-1"),
        f"GET {PODS}/{late}-1/log": refusal(400, "BadRequest", "container main is waiting to start: Pod"),
        f"GET {WORKERS}/{late}": worker(1, phase="Pending", message='configmap "code" not found'),
    }
    job = JobView(api, "digits")
    assert job.log(2) == {"pod": name, "lines": ["[rank2]: <b>no</b>", "two"], "note": ""}
    query = server.requests[-1].query
    assert (query["tailLines"], query["limitBytes"]) == ("300", "262144")
    assert job.log(1)["note"] == f'{late}-1 has not started: configmap "code" not found.'
