"""Takes the progress that Hugging Face's Trainer posts to Kubeflow's: its users have steps for nothing.

transformers' `KubeflowCallback` is there by itself where KUBEFLOW_TRAINER_SERVER_URL is set: rank 0 posts
`{"trainerStatus": {"metrics": [{"name": "current_step", "value": "40"}, …], …}}` every five seconds, with a
token from a file (Kubeflow Trainer, KEP-2779). So does `update_trainjob_status` of Kubeflow's SDK, where the
caller names its step so. In a Pod of an ElasticJob the agent is who listens, on the loopback address.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer
from typing import Any

logger = logging.getLogger(__name__)

ENV_URL = "KUBEFLOW_TRAINER_SERVER_URL"
ENV_TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
STEP_METRICS = ("current_step", "step", "global_step")
"""Names of the metric that is the step."""
ADDRESS = "127.0.0.1"
MAX_BYTES = 65_536
READ_SECONDS = 5.0
LOOK_SECONDS = 5.0
"""Between two looks whether it is to end; posts are taken at once."""


def step_of(body: bytes) -> int | None:
    """The step that a post tells; None if it tells none."""
    try:
        metrics = json.loads(body)["trainerStatus"]["metrics"]
        told = {str(each["name"]): each["value"] for each in metrics}
        return next((int(float(told[name])) for name in STEP_METRICS if name in told), None)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def reached_directly(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that keeps a proxy out of the way to the receiver; empty if no proxy is named.

    Python's urllib and requests read `no_proxy` before `NO_PROXY`, so what the user has said is part of it.
    An empty `no_proxy` switches `NO_PROXY` off for urllib, httpx and curl, and so it does here; requests
    alone would have read on.
    """
    if not any(environ.get(name) for name in PROXIES):
        return {}
    said = environ.get("no_proxy", environ.get("NO_PROXY", ""))
    return {} if said == "*" else {"no_proxy": f"{said},{ADDRESS}".lstrip(",")}


class TrainerStatusReceiver:
    """Listens until `stop`.

    Args:
        take: is given each step, in a thread of this.
        folder: for the file with the token.

    Raises:
        OSError: there is no port, or no room for the file.
    """

    def __init__(self, take: Callable[[int], None], folder: Path) -> None:
        token = secrets.token_hex(16)
        token_file = folder / "trainer_token"
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        # An HTTPServer would ask for the name of its address, in a start that waits for it.
        self._server = TCPServer((ADDRESS, 0), _handler(take, f"Bearer {token}"))
        address = f"http://{ADDRESS}:{self._server.server_address[1]}/"
        self.environment: Mapping[str, str] = {
            ENV_URL: address,
            ENV_TOKEN: str(token_file),
            **reached_directly(os.environ),
        }
        """For training processes."""
        threading.Thread(target=self._serve, name="dlr-trainer-status", daemon=True).start()

    def stop(self) -> None:
        """Have it end soon: who leaves does not wait for it."""
        threading.Thread(target=self._server.shutdown, daemon=True).start()

    def _serve(self) -> None:
        with self._server:
            self._server.serve_forever(LOOK_SECONDS)


def _handler(take: Callable[[int], None], authorization: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = READ_SECONDS

        def do_POST(self) -> None:
            if not hmac.compare_digest(
                self.headers.get("Authorization", "").encode(), authorization.encode()
            ):
                self._answer(HTTPStatus.UNAUTHORIZED)
                return
            length = self.headers.get("Content-Length", "")
            if not length.isdigit() or int(length) > MAX_BYTES:
                self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
                return
            step = step_of(self.rfile.read(int(length)))
            if step is not None and step >= 0:
                take(step)
            self._answer(HTTPStatus.OK)

        def _answer(self, status: HTTPStatus) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            logger.debug(format, *args)

    return Handler
