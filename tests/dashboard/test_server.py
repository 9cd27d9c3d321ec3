"""The dashboard's server, asked over HTTP, beside an API server that is scripted."""

from __future__ import annotations

import asyncio

import pytest

from dlr.dashboard.server import FILES, STATIC, Dashboard, serve
from dlr.kube.api import Api
from dlr.kube.connection import connect
from dlr.kube.errors import UsageError
from tests.cli.scripted import refusal
from tests.cli.troubled import troubled_job
from tests.dashboard.conftest import JOB, WAIT_SECONDS, Served

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


async def test_port_that_is_taken_is_a_sentence(served: Served) -> None:
    port = int(served.url.split("/")[2].partition(":")[2])
    with pytest.raises(UsageError, match=f"127.0.0.1:{port} cannot be listened on"):
        async with serve(Dashboard(Api(connect(None, None, None))), port):
            pass
