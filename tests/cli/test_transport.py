"""The command line's connections in a process that has many files open, as a server with `dlr.Client` may."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dlr.kube.transport import Transport

BEYOND_SELECT = 1_100
"""select(2) takes no descriptor above 1,023."""


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


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
def test_a_connection_is_used_again_where_more_than_a_thousand_files_are_open() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    transport = Transport({"server": f"http://127.0.0.1:{server.server_port}"}, {})
    try:
        for _ in range(2):
            assert transport.ask("GET", "/", read_timeout_seconds=5).status == 200
    finally:
        server.shutdown()
        server.server_close()
