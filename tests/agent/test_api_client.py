"""The client of the API server, for agent, commands, SDK and dashboard."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent.kube.api import ApiClient
from controller.connection import Connection
from controller.errors import SilentWatch, Unauthorized, Unavailable

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("patient")]

BEYOND_SELECT = 1_100
"""select(2) takes no descriptor above 1,023."""


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer comes as a whole, so that no part of it can be late
    requests: list[str]
    """The paths that were asked for, and the clients' ports."""

    def do_GET(self) -> None:
        self.requests.append(f"{self.path} {self.headers.get('Authorization')} {self.client_address[1]}")
        self.send_response(200)
        if "watch=true" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            event = b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}\n'
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            threading.Event().wait(300)
            return
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    handler = type("Handler", (Answers,), {"requests": []})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", handler.requests
    http.shutdown()
    http.socket.close()


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * BEYOND_SELECT)), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(BEYOND_SELECT)]
    yield
    for descriptor in held:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_connection_is_used_again_where_more_than_a_thousand_files_are_open(
    server: tuple[str, list[str]],
) -> None:
    url, requests = server
    client = ApiClient(Connection(url, "the test"))
    for _ in range(2):
        assert client.get("/") == {}
    assert len({request.split()[-1] for request in requests}) == 1


def test_a_silent_watch_ends_by_itself(server: tuple[str, list[str]]) -> None:
    client = ApiClient(Connection(server[0], "the test"))
    events = iter(client.watch("/", {}, idle_timeout_seconds=0.3, open_timeout_seconds=300))
    assert next(events)["type"] == "BOOKMARK"
    with pytest.raises(SilentWatch):
        next(events)


def test_requests_go_through_a_proxy_with_its_login(server: tuple[str, list[str]]) -> None:
    client = ApiClient(
        Connection("http://api.example:6443", "the test", proxy=server[0], password="me:secret")
    )
    assert client.get("/version") == {}
    assert server[1][0].startswith("http://api.example:6443/version Basic bWU6c2VjcmV0 ")


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    client = ApiClient(Connection("http://127.0.0.1:9", "$KUBECONFIG", token_file=tmp_path / "token"))
    with pytest.raises(Unauthorized, match=r"token of \$KUBECONFIG cannot be read: No such file"):
        client.get("/version")


def test_a_server_that_is_away_is_named_with_the_systems_own_words() -> None:
    client = ApiClient(Connection("http://127.0.0.1:9", "$KUBECONFIG", advice="; is it up?"))
    with pytest.raises(Unavailable) as away:
        client.get("/version")
    assert str(away.value) == (
        "No API server answers at http://127.0.0.1:9, which $KUBECONFIG names (Connection refused); is it up?"
    )
