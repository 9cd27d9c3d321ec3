"""Plain access to an API server: JSON objects in, JSON objects out, every call time-limited.

pykube-ng does kubeconfig, authentication and TLS. Its watch just ends (and so does whoever relies on it),
so `watch` here is one bare request; `e2e.observation` decides what to do when it ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pykube
import requests

Object = dict[str, Any]

CALL_TIMEOUT_SECONDS = 60.0
WATCH_SECONDS = 60
WATCH_IDLE_SECONDS = 90.0
"""A watch that says nothing for longer than the server was told to keep it open is dead."""


@dataclass(frozen=True)
class Resource:
    api_version: str
    plural: str
    namespaced: bool = True


class Kind(Enum):
    JOB = Resource("elastic.iml.github.io/v1alpha1", "elasticjobs")
    WORKER = Resource("elastic.iml.github.io/v1alpha1", "elasticworkers")
    SHARD_SET = Resource("elastic.iml.github.io/v1alpha1", "shardsets")
    CHECK = Resource("elastic.iml.github.io/v1alpha1", "nodechecks")
    PLAN = Resource("elastic.iml.github.io/v1alpha1", "scaleplans")
    POD = Resource("v1", "pods")
    EVENT = Resource("v1", "events")
    NODE = Resource("v1", "nodes", namespaced=False)
    NAMESPACE = Resource("v1", "namespaces", namespaced=False)
    LEASE = Resource("coordination.k8s.io/v1", "leases")


class Refused(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Api:
    """One session with an API server. Not to be shared between threads."""

    def __init__(self, kubeconfig: Path) -> None:
        config = pykube.KubeConfig.from_file(str(kubeconfig))
        self._client = pykube.HTTPClient(config, timeout=CALL_TIMEOUT_SECONDS)

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        return self._call("get", kind, namespace, name)

    def list(self, kind: Kind, namespace: str | None = None) -> Object:
        return self._call("get", kind, namespace)

    def create(self, kind: Kind, manifest: Object, namespace: str | None = None) -> Object:
        return self._call("post", kind, namespace, json=manifest)

    def patch(self, kind: Kind, name: str, patch: Object, namespace: str | None = None) -> Object:
        headers = {"Content-Type": "application/merge-patch+json"}
        return self._call("patch", kind, namespace, name, data=json.dumps(patch), headers=headers)

    def delete(self, kind: Kind, name: str, namespace: str | None = None, **options: Any) -> None:
        """`options` are DeleteOptions; an object that is gone already is fine."""
        try:
            self._call("delete", kind, namespace, name, json={"propagationPolicy": "Background", **options})
        except Refused as error:
            if error.status != requests.codes.not_found:
                raise

    def log(self, pod: str, namespace: str) -> str:
        request = {"version": "v1", "namespace": namespace, "url": f"pods/{pod}/log"}
        response = self._client.get(**request)
        _raise_for(response)
        return str(response.text)

    def watch(self, kind: Kind, namespace: str | None, resource_version: str) -> Iterator[Object]:
        """Watch events until the server ends the stream."""
        with self._client.get(
            **_request(kind, namespace),
            params={"watch": "1", "resourceVersion": resource_version, "timeoutSeconds": WATCH_SECONDS},
            stream=True,
            timeout=(CALL_TIMEOUT_SECONDS, WATCH_IDLE_SECONDS),
        ) as response:
            _raise_for(response)
            for line in response.iter_lines(chunk_size=None):
                with suppress(RecursionError):  # scenarios ask nothing of what is so deep
                    yield json.loads(line)

    def close(self) -> None:
        self._client.session.close()

    def _call(self, verb: str, kind: Kind, namespace: str | None, name: str = "", **options: Any) -> Object:
        response = getattr(self._client, verb)(**_request(kind, namespace, name), **options)
        _raise_for(response)
        answer: Object = response.json()
        return answer


def _request(kind: Kind, namespace: str | None, name: str = "") -> dict[str, Any]:
    url = kind.value.plural + (f"/{name}" if name else "")
    return {"version": kind.value.api_version, "namespace": namespace, "url": url}


def _raise_for(response: requests.Response) -> None:
    if response.ok:
        return
    try:
        message = response.json().get("message", response.text)
    except ValueError:
        message = response.text
    raise Refused(response.status_code, message)
