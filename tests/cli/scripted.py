"""A scripted API server, and objects in one line."""

from __future__ import annotations

import copy
import errno
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import urllib3

from crds.ranges import to_text
from tests.reconcilers.build import node_sets, verdicts_in

JSON = dict[str, Any]
Dlr = Callable[..., Any]
"""The command, as the fixture `dlr` calls it."""
GROUP_PATH = "/apis/elastic.iml.github.io/v1alpha1/namespaces"
JOBS, WORKERS = f"{GROUP_PATH}/default/elasticjobs", f"{GROUP_PATH}/default/elasticworkers"
PODS, EVENTS = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/events"
CREATED = "2026-01-01T00:00:00Z"
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "digits"}]}}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


def asked(method: str, url: str, body: bytes | None) -> Request:
    parts = urlsplit(url)
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    return Request(method, parts.path, query, json.loads(body) if body else None)


class Script:
    """Answers what a test has put under `METHOD /path`; of a list each entry in turn, then the last;
    of a function what it returns for the request. A body that is an iterator is sent line by line.

    `request` stands in for urllib3's pool of connections, so that no socket is opened.
    """

    url = "http://127.0.0.1:6443"
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: list[Request] = []
        self.is_away = False

    def request(
        self, method: str, url: str, *, body: bytes | None = None, preload_content: bool = True, **_: Any
    ) -> urllib3.HTTPResponse:
        if self.is_away:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        answer = self.answer(asked(method, url, body))
        is_stream = isinstance(answer.body, Iterator)
        data = (
            b"".join(json.dumps(line).encode() + b"\n" for line in answer.body) if is_stream else answer.data
        )
        return urllib3.HTTPResponse(
            io.BytesIO(data), answer.headers, answer.status, preload_content=preload_content
        )

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        scripted = self.answers.get(f"{request.method} {request.path}")
        if isinstance(scripted, list):
            scripted = scripted.pop(0) if len(scripted) > 1 else scripted[0]
        if callable(scripted):
            scripted = scripted(request)
        if scripted is None:
            return Answer(404, "404 page not found\n")
        return scripted if isinstance(scripted, Answer) else Answer(200, scripted)


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def refusal(code: int, reason: str, message: str, **details: Any) -> Answer:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return Answer(code, body | {"details": details})


def listing(*items: JSON) -> JSON:
    return {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": list(items)}


def show(server: Script, made: JSON | list[JSON], workers: Sequence[JSON] = (), *events: JSON) -> None:
    """Have a server with the job digits, or what it is at each look, its workers and its events."""
    server.answers |= {
        f"GET {JOBS}/digits": made,
        f"GET {WORKERS}": listing(*workers),
        f"GET {GROUP_PATH}/default/nodechecks": listing(),
        f"GET {EVENTS}": listing(*events),
    }


def job(name: str = "digits", namespace: str = "default", *, workers: int = 2, **status: Any) -> JSON:
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "creationTimestamp": CREATED,
        },
        "spec": {"replicaSpecs": {"worker": {"replicas": workers, "template": copy.deepcopy(TEMPLATE)}}},
        "status": status,
    }


def worker(index: int, *, job_name: str = "digits", incarnation: int = 1, **status: Any) -> JSON:
    name = f"{job_name}-worker-{index}"
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
        "spec": {"jobName": job_name, "type": "worker", "index": index, "incarnation": incarnation},
        "status": {"podName": f"{name}-{incarnation}", "phase": "Running", "nodeName": f"node-{index}"}
        | status,
    }


def node_check(
    name: str = "node-check-abcde", spec: JSON | None = None, uid: str = "uid-check", **status: Any
) -> JSON:
    """Its `rounds` have names of nodes here, and their places in `nodes` in the object."""
    told = status.get("rounds") or []
    met = [node for done in told for group in done["groups"] for node in group["members"]]
    nodes = status.setdefault("nodes", list(dict.fromkeys(met))) if met else status.get("nodes", [])
    status |= {"rounds": [_as_stored(done, nodes) for done in told]} if told else {}
    status |= {"nodeSets": node_sets(nodes, verdicts_in(status))}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "NodeCheck",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "1",
            "creationTimestamp": CREATED,
        },
        "spec": spec or {"nodeSelector": {}, "cordon": True},
        "status": status,
    }


def _as_stored(done: JSON, nodes: list[str]) -> JSON:
    groups = done["groups"]
    return {
        "number": done["number"],
        "tests": [[nodes.index(node) for node in group["members"]] for group in groups],
        "failed": to_text([at for at, group in enumerate(groups) if not group["passed"]]),
        "reasons": [
            {"test": at, "message": group["message"]}
            for at, group in enumerate(groups)
            if not group["passed"] and "message" in group
        ],
        "busGbps": [group["figures"].get("pair_bus_gbps", 0.0) for group in groups],
    }


def check_worker(index: int, **status: Any) -> JSON:
    """The worker of a check on node-INDEX."""
    return {
        "metadata": {"name": f"node-check-abcde-check-{index}", "namespace": "default"},
        "spec": {"type": "check", "index": index, "incarnation": 1, "nodeName": f"node-{index}"},
        "status": {"phase": "Running", "nodeName": f"node-{index}"} | status,
    }


def condition(kind: str, status: str, message: str = "", reason: str = "Said") -> JSON:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def event(kind: str, name: str, reason: str, when: str, message: str = "", **more: Any) -> JSON:
    return {
        "metadata": {"name": f"{name}.{reason}", "uid": f"{name}.{reason}.{when}", "resourceVersion": "1"},
        "involvedObject": {"kind": kind, "name": name},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "lastTimestamp": when,
    } | more


def pod(name: str, phase: str = "Running", *containers: str) -> JSON:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": each} for each in containers or ("main",)]},
        "status": {"phase": phase},
    }


def kubeconfig_for(server: str, **context: Any) -> JSON:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"} | context}],
        "current-context": "x",
    }
