"""A Kubernetes API server for the ElasticWorld of one job and one NodeCheck, and the hand of the controller: tests form the
rounds of either."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from crds import names
from crds.ranges import from_text, grouped, to_text
from reconcilers.job.published import world_spec
from tests.ports import free_port

JOB = "job"
CHECK = "nightly"
NAMESPACE = "default"
KEY = bytes(range(32))
"""The job's key."""
TOKEN = "a-token"


def merge(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            target[key] = merge(dict(target.get(key) or {}), value)
        else:
            target[key] = value
    return target


class FakeCluster:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.changed = threading.Condition()
        self.version = 1
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.job: dict[str, Any] = {
            "metadata": {"name": JOB, "resourceVersion": "1"},
            "spec": {},
            "status": {},
        }
        self.check: dict[str, Any] | None = None
        self.workers: dict[str, dict[str, Any]] = {}
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.incarnations: dict[str, int] = {}
        self.refused: list[str] = []
        self.lists = 0
        """Number of times that the world was read, and not watched."""
        self.delivers = threading.Event()
        """Whether watches deliver what changes."""
        self.delivers.set()
        self._write_credentials()
        self.port = free_port()
        self.server = self._serve(self.port)

    # The controller's side.

    def publish(self, **status: Any) -> None:
        with self.changed:
            self.version += 1
            self.job = {
                "metadata": self.job["metadata"] | {"resourceVersion": str(self.version)},
                "spec": self.job["spec"],
                "status": {**self.job["status"], **status},
            }
            self._tell("elasticworlds", "MODIFIED", self.world)

    @property
    def world(self) -> dict[str, Any]:
        """As the controller derives it from the job."""
        metadata = self.job["metadata"] | {"labels": {names.LABEL_JOB: JOB}}
        return {"metadata": metadata, "spec": world_spec(self.job)}

    def form(self, members: list[int]) -> None:
        """Publish the next round. The last one was broken if a member says that it failed."""
        agents = [self.agent(index) for index in members]
        before = self.job["status"].get("rendezvous") or {}
        told = [self.agent(index) for index in from_text(before.get("members", ""))]
        failed = any((a.get("state"), a.get("observedRound")) == ("Failed", self.round) for a in told)
        self.publish(
            phase="Running",
            rendezvous={
                "round": self.round + 1,
                "phase": "Formed",
                "members": to_text(members),
                "incarnations": grouped(members, [a["incarnation"] for a in agents]),
                "worldSize": sum(a["localWorldSize"] for a in agents),
                "masterAddress": agents[0]["address"],
                "masterPort": agents[0]["storePort"],
                "reason": "the test says so",
                "brokenRound": self.round if failed else before.get("brokenRound", 0),
            },
        )

    def reform(self) -> None:
        """Give the world up."""
        self.publish(rendezvous={**self.job["status"]["rendezvous"], "phase": "Reforming"})

    @property
    def round(self) -> int:
        return (self.job["status"].get("rendezvous") or {}).get("round", 0)

    def publish_check(self, spec: dict[str, Any] | None = None, **status: Any) -> None:
        """The whole status. A spec that was given stays."""
        with self.changed:
            self.version += 1
            spec = (self.check or {}).get("spec", {}) if spec is None else spec
            metadata = {"name": CHECK, "uid": "uid-of-check", "resourceVersion": str(self.version)}
            self.check = {"metadata": metadata, "spec": spec, "status": status}
            self._tell("nodechecks", "MODIFIED", self.check)

    def delete_check(self) -> None:
        assert self.check is not None
        with self.changed:
            self.version += 1
            self.check["metadata"]["resourceVersion"] = str(self.version)
            self._tell("nodechecks", "DELETED", self.check)
            self.check = None

    def _tell(self, resource: str, kind: str, thing: dict[str, Any]) -> None:
        self.history.append((self.version, resource, {"type": kind, "object": thing}))
        self.changed.notify_all()

    def agent(self, index: int, slot: str = f"{JOB}-worker") -> dict[str, Any]:
        return (self.workers.get(f"{slot}-{index}") or {}).get("status", {}).get("agent") or {}

    def check_agent(self, index: int) -> dict[str, Any]:
        return self.agent(index, f"{CHECK}-check")

    def wait(self, condition: Callable[[], Any], what: str, timeout_seconds: float = 300.0) -> None:
        def ends() -> Any:
            assert not self.server.faults, self.server.faults[0]
            return condition()

        with self.changed:
            if not self.changed.wait_for(ends, timeout_seconds):
                seen = {name: worker["status"].get("agent") for name, worker in self.workers.items()}
                raise AssertionError(f"waited {timeout_seconds} s for {what}: {json.dumps(seen, indent=1)}")

    def wait_state(self, states: dict[int, str], round_: int, timeout_seconds: float = 300.0) -> None:
        def reached() -> bool:
            return all(
                self.agent(i).get("state") == s and self.agent(i).get("observedRound") == round_
                for i, s in states.items()
            )

        self.wait(reached, f"{states} in round {round_}", timeout_seconds)

    def wait_step(self, index: int, step: int) -> None:
        self.wait(
            lambda: (self.agent(index).get("progress") or {}).get("step", -1) >= step,
            f"step {step} of worker {index}",
        )

    def replace_worker(self, name: str, incarnation: int) -> None:
        """From now on only that incarnation may report, as deploy/admission/worker-identity.yaml has it."""
        self.incarnations[name] = incarnation

    # The server's life.

    def stop(self) -> None:
        """Away: connections are refused, and those that are open break."""
        server = self.server
        server.break_connections()  # first: a watch that sees that the server is gone ends in good order
        self.server = None
        with self.changed:
            self.changed.notify_all()
        server.shutdown()
        server.server_close()

    def start(self) -> None:
        self.server = self._serve(self.port)

    def close(self) -> None:
        if self.server is not None:
            self.stop()

    def environ(self, index: int, incarnation: int = 1) -> dict[str, str]:
        name = f"{JOB}-worker-{index}"
        self.workers.setdefault(name, {"metadata": {"name": name}, "status": {}})
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "DLR_SERVICEACCOUNT_DIR": str(self.directory),
            "DLR_JOB_NAME": JOB,
            "DLR_NAMESPACE": NAMESPACE,
            "DLR_JOB_KEY": KEY.hex(),
            "DLR_WORKER_NAME": name,
            "DLR_WORKER_INDEX": str(index),
            "DLR_INCARNATION": str(incarnation),
            "DLR_POD_UID": f"uid-{index}-{incarnation}",
            "POD_IP": f"127.0.0.{index + 2}",
            "DLR_NODE_NAME": f"node-{index}",
            "DLR_HEARTBEAT_SECONDS": "0.5",
            "DLR_TERMINATION_GRACE_SECONDS": "1200",
        }

    def check_environ(self, index: int) -> dict[str, str]:
        """Of a Pod of the NodeCheck."""
        name = f"{CHECK}-check-{index}"
        self.workers.setdefault(name, {"metadata": {"name": name}, "status": {}})
        owner = {"DLR_JOB_NAME": "", "DLR_CHECK_NAME": CHECK, "DLR_WORKER_NAME": name}
        return {**self.environ(index), **owner}

    def _serve(self, port: int) -> Any:
        handler = type("Handler", (_Handler,), {"cluster": self})
        server = _Server(("127.0.0.1", port), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.directory / "ca.crt", self.directory / "key.pem")
        server.tls = context
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def _write_credentials(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake")])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        (self.directory / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.directory / "key.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        (self.directory / "token").write_text(TOKEN)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    tls: ssl.SSLContext

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._lock = threading.Lock()
        self._connections: set[Any] = set()
        self._broken = False
        self.faults: list[str] = []

    def break_connections(self) -> None:
        with self._lock:
            self._broken = True
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(300)
        with contextlib.suppress(OSError):
            wrapped = self.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            with self._lock:  # one that was accepted at the last moment must not outlive the server
                if self._broken:
                    wrapped.close()
                    return
                self._connections.add(wrapped)
            wrapped.do_handshake()
            self.RequestHandlerClass(wrapped, client_address, self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep a fault of ours for whoever waits; clients that go are none."""
        self.faults.append(traceback.format_exc())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: FakeCluster

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if self._refused():
            return
        cluster = self.cluster
        resource = url.path.rpartition("/")[2]
        if resource in ("elasticworlds", "nodechecks"):
            name = JOB if resource == "elasticworlds" else CHECK
            assert query["fieldSelector"] == f"metadata.name={name}"
            if query.get("watch"):
                self._watch(resource, int(query["resourceVersion"]), float(query["timeoutSeconds"]))
                return
            with cluster.changed:
                cluster.lists += resource == "elasticworlds"
                cluster.changed.notify_all()
                version = str(cluster.version)
                thing = cluster.world if resource == "elasticworlds" else cluster.check
                self._answer(
                    200, {"metadata": {"resourceVersion": version}, "items": [thing] if thing else []}
                )
        elif resource == "elasticworkers":
            assert query["labelSelector"] == f"{names.LABEL_JOB}={JOB}"
            self._answer(200, {"items": list(cluster.workers.values())})
        else:
            self._answer(403, {"message": f"a worker may not read {resource}", "reason": "Forbidden"})

    def do_PATCH(self) -> None:
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        cluster, parts = self.cluster, self.path.split("/")
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        with cluster.changed:
            if "leases" in parts:
                answer = patch
            else:
                assert parts[-1] == "status"
                name, report = parts[-2], (patch.get("status") or {}).get("agent")
                speaks = cluster.incarnations.get(name)
                if report is not None and speaks not in (None, report.get("incarnation")):
                    cluster.refused.append(name)
                    cluster.changed.notify_all()
                    message = f"denied: only the Pod {name}-{speaks} may report for this ElasticWorker"
                    self._answer(403, {"message": message, "reason": "Forbidden"})
                    return
                answer = merge(cluster.workers[name], patch)
                if report is not None:
                    cluster.workers[name] = answer
                    cluster.reports.append((name, report))
            cluster.changed.notify_all()
        self._answer(200, answer)

    def _refused(self) -> bool:
        if self.headers["Authorization"] == f"Bearer {TOKEN}":
            return False
        self._answer(401, {"message": "who are you?"})
        return True

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self, resource: str, version: int, timeout_seconds: float) -> None:
        cluster, server = self.cluster, self.server
        deadline = time.monotonic() + timeout_seconds
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while cluster.server is server:
            with cluster.changed:
                events = [(v, e) for v, r, e in cluster.history if v > version and r == resource]
                if not events and not cluster.changed.wait(deadline - time.monotonic()):
                    break
            cluster.delivers.wait()
            for version, event in events:  # noqa: B007
                self._chunk(event)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, event: dict[str, Any]) -> None:
        data = json.dumps(event).encode() + b"\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
