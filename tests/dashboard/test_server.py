"""The dashboard's server, asked over HTTP, beside an API server that is scripted."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from dlr.dashboard import feed
from dlr.dashboard.feed import Feed
from dlr.dashboard.reading import FleetView
from dlr.dashboard.server import FILES, STATIC, Dashboard, serve
from dlr.kube.api import Api
from dlr.kube.connection import connect
from dlr.kube.errors import ApiError, UsageError
from tests.cli.scripted import WORKERS, Answer, kubeconfig_for, pod, refusal, worker
from tests.cli.troubled import troubled_job
from tests.dashboard.conftest import JOB, WAIT_SECONDS, WITHIN, Served

pytestmark = pytest.mark.real

JOB_QUERY = "view=job&namespace=default&name=digits"


async def test_without_the_token_or_for_another_page_nothing_is_told(served: Served) -> None:
    served.api.requests.clear()
    port = served.url.split("/")[2]
    for path in ("", "static/app.js", f"events?{JOB_QUERY}", "log?namespace=default&name=digits&rank=0"):
        for given in ("", "x", "x" * 32, "%C3%A4"):
            async with served.session.get(
                f"http://{port}/{given}/{path}" if given else f"http://{port}/{path}"
            ) as answer:
                assert answer.status == 403
                assert "open the address that `dlr dashboard` printed" in await answer.text()
        for headers in ({"Host": "evil.example:80"}, {"Origin": "http://evil.example"}):
            assert (await served.get(path, **headers))[0] == 403
    assert not served.api.requests


async def test_request_without_a_path_is_refused(served: Served) -> None:
    port = int(served.url.split("/")[2].partition(":")[2])
    for line in ("OPTIONS *", "CONNECT x:1", "GET //", "GET /?"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(WAIT_SECONDS):
            assert (await reader.read()).startswith(b"HTTP/1.1 403 ")
        writer.close()


async def test_nothing_can_be_changed(served: Served) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        async with served.session.request(method, f"{served.url}events?{JOB_QUERY}") as answer:
            assert answer.status == 405
    assert {request.method for request in served.api.requests} <= {"GET"}


async def test_each_answer_has_the_headers_that_keep_others_out(served: Served) -> None:
    for path in ("", "static/app.js", "static/none", "nothing", "log?namespace=default&name=digits&rank=x"):
        _, _, headers = await served.get(path)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")


async def test_page_and_its_files_come_from_here_alone_and_are_small(served: Served) -> None:
    status, index, _ = await served.get("")
    assert status == 200
    size = len(index)
    for name in FILES:
        status, text, _ = await served.get(f"static/{name}")
        assert status == 200
        size += len(text)
        if not name.startswith("uplot"):
            outside = text.replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in outside and "https://" not in outside
            assert "innerHTML" not in text
    assert size < 150_000
    assert (await served.get("static/..%2Fserver.py"))[0] == 404
    assert {path.name for path in STATIC.iterdir()} == {*FILES, "index.html", "uplot.LICENSE.txt"}


async def test_fleet_and_job_are_told_again_and_again(served: Served) -> None:
    async with served.events("view=fleet") as until:
        told = await until(lambda told: told["page"])
        assert [job["name"] for job in told["page"]["jobs"]] == ["digits"]
    async with served.events(JOB_QUERY) as until:
        await until(lambda told: told["page"]["phase"] == "Running")
        served.api.answers[JOB] = troubled_job(phase="Succeeded")
        told = await until(lambda told: told["page"]["phase"] == "Succeeded")
        assert told["trouble"] is None


async def test_job_that_is_deleted_while_it_is_shown_says_so_and_stays(served: Served) -> None:
    async with served.events(JOB_QUERY) as until:
        await until(lambda told: told["page"])
        served.api.answers["GET /api/v1/namespaces/default"] = {"metadata": {"name": "default"}}
        served.api.answers[JOB] = refusal(404, "NotFound", "no", name="digits")
        told = await until(lambda told: told["trouble"])
        assert told["trouble"].startswith("There is no ElasticJob 'digits' in namespace 'default'")
        assert told["page"]["name"] == "digits"
        again = troubled_job()
        again["metadata"]["uid"] = "another"
        served.api.answers[JOB] = again
        assert (await until(lambda told: not told["trouble"]))["page"]["uid"] == "another"


async def test_no_api_server_at_all_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(yaml.safe_dump(kubeconfig_for("http://127.0.0.1:9")))
    monkeypatch.setenv("KUBECONFIG", str(config))
    cluster = Api(connect(None, None, None))
    async with (
        serve(Dashboard(cluster), 0) as url,
        aiohttp.ClientSession() as session,
        Served(url, None, session).events("view=fleet") as until,  # type: ignore[arg-type]
    ):
        told = await until(lambda told: told["trouble"])
    assert told["page"] is None
    assert told["trouble"].startswith("No API server answers at http://127.0.0.1:9")


async def test_cluster_without_dlr_and_missing_rights_are_sentences(served: Served) -> None:
    served.api.answers[f"GET {WITHIN}/elasticjobs"] = Answer(404, "404 page not found\n")
    async with served.events("view=fleet") as until:
        assert "Install dlr there" in (await until(lambda told: told["trouble"]))["trouble"]
        served.api.answers[f"GET {WITHIN}/elasticjobs"] = refusal(
            403, "Forbidden", "elasticjobs is forbidden: no"
        )
        await until(lambda told: told["trouble"] == "elasticjobs is forbidden: no")


async def test_who_may_not_read_all_namespaces_is_told_how_to_see_one(served: Served) -> None:
    path = "/apis/elastic.iml.github.io/v1alpha1/elasticjobs"
    served.api.answers[f"GET {path}"] = refusal(
        403, "Forbidden", "elasticjobs is forbidden: at the cluster scope"
    )
    cluster = Api(connect(None, None, None))
    with pytest.raises(ApiError, match=r"at the cluster scope. Of one namespace: dlr dashboard -n NAMESPACE"):
        FleetView(cluster, all_namespaces=True).read()


async def test_credentials_that_have_expired_are_got_anew(served: Served) -> None:
    served.api.answers[JOB] = [Answer(401, "no\n"), troubled_job()]
    async with served.events(JOB_QUERY) as until:
        told = await until(lambda told: True)
    assert (told["trouble"], told["page"]["name"]) == (None, "digits")


async def test_defect_in_a_page_is_told_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def read(self) -> dict[str, float]:
            raise RuntimeError("a defect")

    monkeypatch.setattr(feed, "TROUBLE_WAIT_SECONDS", 0.02)
    async with aclosing(Feed(Broken()).updates()) as updates:
        for _ in range(2):
            assert (
                "dlr cannot make this page (RuntimeError"
                in json.loads((await anext(updates)).body)["trouble"]
            )
    assert len(caplog.records) == 1


async def test_log_of_a_rank_is_its_end(served: Served) -> None:
    name = "digits-worker-2-2"
    served.api.answers[f"GET /api/v1/namespaces/default/pods/{name}"] = pod(name)
    served.api.answers[f"GET /api/v1/namespaces/default/pods/{name}/log"] = (
        "2026-01-01T00:00:01Z [rank2]: [rank2]: <b>no</b>\n2026-01-01T00:00:02Z two\n"
    )
    status, text, _ = await served.get("log?namespace=default&name=digits&rank=2")
    assert (status, json.loads(text)) == (
        200,
        {"pod": name, "lines": ["[rank2]: <b>no</b>", "two"], "note": ""},
    )
    query = served.api.requests[-1].query
    assert (query["tailLines"], query["limitBytes"]) == ("300", "262144")


async def test_log_of_a_pod_that_does_not_start_is_the_reason_that_its_worker_has(served: Served) -> None:
    name = "digits-worker-1"
    refused = refusal(400, "BadRequest", "container main is waiting to start: PodInitializing")
    starting = worker(1, phase="Pending", message='configmap "code" not found')
    served.api.answers |= {
        f"GET /api/v1/namespaces/default/pods/{name}-1": pod(f"{name}-1"),
        f"GET /api/v1/namespaces/default/pods/{name}-1/log": refused,
        f"GET {WORKERS}/{name}": starting,
    }
    _, text, _ = await served.get("log?namespace=default&name=digits&rank=1")
    assert json.loads(text)["note"] == f'{name}-1 has not started: configmap "code" not found.'


async def test_log_that_cannot_be_is_a_sentence(served: Served) -> None:
    gone = refusal(404, "NotFound", "no", name="digits-worker-1-1")
    served.api.answers["GET /api/v1/namespaces/default/pods/digits-worker-1-1"] = gone
    for query, status, said in (
        ("namespace=default&name=digits&rank=7", 200, "has no rank 7"),
        ("namespace=default&name=digits&rank=-1", 400, "rank must be a number"),
        ("namespace=default&name=digits&rank=\u0663", 400, "rank must be a number"),
        ("namespace=default&name=../../x&rank=1", 400, "names in Kubernetes"),
        ("namespace=&name=digits&rank=1", 400, "names in Kubernetes"),
        ("namespace=default&name=digits&rank=1", 200, "is gone, and its log with it"),
    ):
        found, text, _ = await served.get(f"log?{query}")
        assert found == status
        assert said in text


async def test_nobody_asks_the_api_server_while_nobody_looks(served: Served) -> None:
    async with served.events(JOB_QUERY) as until:
        await until(lambda told: told["page"])
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            before = len(served.api.requests)
            await asyncio.sleep(0.3)
            if len(served.api.requests) == before:
                return


class Infinite:
    def read(self) -> dict[str, float]:
        return {"slowness": 1e300 * 1e300}


async def test_number_that_is_infinite_breaks_no_page() -> None:
    """Browsers read no `Infinity`, and a worker's step times may be so far apart."""
    async with aclosing(Feed(Infinite()).updates()) as updates:
        body = (await anext(updates)).body
    assert json.loads(body, parse_constant=pytest.fail)["page"] == {"slowness": None}


async def test_port_that_is_taken_is_a_sentence(served: Served) -> None:
    port = int(served.url.split("/")[2].partition(":")[2])
    with pytest.raises(UsageError, match=f"127.0.0.1:{port} cannot be listened on"):
        async with serve(Dashboard(Api(connect(None, None, None))), port):
            pass


class Slow:
    """A view whose readings last until they may end."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Semaphore(0), threading.Event()
        self.under_way = self.most = 0

    def read(self) -> dict[str, Any]:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.begun.release()
        self.may_end.wait(30)
        self.under_way -= 1
        return {}


async def test_a_page_that_is_loaded_again_and_again_is_read_once_at_a_time() -> None:
    view = Slow()
    feed = Feed(view)
    for number in range(5):
        updates = feed.updates()
        first = asyncio.create_task(anext(updates))
        if not number:
            await asyncio.to_thread(view.begun.acquire)
        for _ in range(10):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await updates.aclose()
    view.may_end.set()
    async with aclosing(feed.updates()) as updates:
        assert (await anext(updates)).body
    assert view.most == 1
