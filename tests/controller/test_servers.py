import asyncio
import socket
import threading

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.serving.servers import Listen, Readiness, ServeError, serve

pytestmark = pytest.mark.real

FREE = Listen(address="127.0.0.1", health_port=0, metrics_port=0)


async def fetch(port, path, host="127.0.0.1"):
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as response:
        return response.status, await response.text()


async def test_probes_tell_alive_from_ready():
    state = Readiness()
    async with serve(FREE, state, CollectorRegistry()) as ports:
        assert await fetch(ports.health, "/healthz") == (200, "ok\n")
        assert await fetch(ports.health, "/readyz") == (503, "not ready: starting\n")
        state.not_ready = None
        assert await fetch(ports.health, "/readyz") == (200, "ok\n")
        state.not_ready = "stopping"
        assert (await fetch(ports.health, "/readyz"))[0] == 503


async def test_metrics_in_a_format_that_there_is_not_are_plain_text():
    accept = {"Accept": "application/openmetrics-text; version=x"}
    async with (
        serve(FREE, Readiness(), CollectorRegistry()) as ports,
        aiohttp.ClientSession(headers=accept) as session,
        session.get(f"http://127.0.0.1:{ports.metrics}/metrics") as response,
    ):
        assert (response.status, response.content_type) == (200, "text/plain")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_probes_and_metrics_are_answered_by_ipv6_and_by_ipv4():
    async with serve(Listen(health_port=0, metrics_port=0), Readiness(), CollectorRegistry()) as ports:
        for host in ("127.0.0.1", "[::1]"):
            assert await fetch(ports.health, "/healthz", host) == (200, "ok\n")
            assert (await fetch(ports.metrics, "/metrics", host))[0] == 200


async def test_a_machine_without_ipv6_listens_on_ipv4(monkeypatch):
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    async with serve(Listen(health_port=0, metrics_port=None), Readiness(), CollectorRegistry()) as ports:
        assert await fetch(ports.health, "/healthz") == (200, "ok\n")


async def test_an_address_of_another_machine_is_not_called_a_port_in_use():
    listen = Listen("192.0.2.1", None, 0)
    with pytest.raises(ServeError, match=r"cannot listen on 192\.0\.2\.1 port 0: .*assign requested address"):
        async with serve(listen, Readiness(), CollectorRegistry()):
            pass


async def test_port_in_use_is_one_clear_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listen = Listen("127.0.0.1", None, port)
        with pytest.raises(ServeError, match=f"port {port} on 127.0.0.1 is in use by another process"):
            async with serve(listen, Readiness(), CollectorRegistry()):
                pass


class Slow(Collector):
    """Takes as long as it is told to, and has the loop's help in that."""

    def __init__(self):
        self.go_on = threading.Event()

    def collect(self):
        assert self.go_on.wait(300)
        yield GaugeMetricFamily("slow", "Slow", value=1)


async def test_probes_are_answered_while_metrics_are_collected():
    registry, slow = CollectorRegistry(auto_describe=False), Slow()
    slow.describe = lambda: []  # or registering it would collect
    registry.register(slow)
    async with serve(FREE, Readiness(), registry) as ports:
        scrape = asyncio.create_task(fetch(ports.metrics, "/metrics"))
        for _ in range(20):
            assert await fetch(ports.health, "/healthz") == (200, "ok\n")
        assert not scrape.done()
        slow.go_on.set()
        assert "slow 1.0" in (await scrape)[1]
