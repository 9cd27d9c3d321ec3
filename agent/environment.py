"""Who this worker is, as its Pod's environment says it (the controller writes it; crds/names.py names it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

JOB_NAME = "DLR_JOB_NAME"
NAMESPACE = "DLR_NAMESPACE"
WORKER_NAME = "DLR_WORKER_NAME"
WORKER_INDEX = "DLR_WORKER_INDEX"
INCARNATION = "DLR_INCARNATION"
POD_UID = "DLR_POD_UID"
POD_IP = "POD_IP"
NODE_NAME = "DLR_NODE_NAME"
HEARTBEAT_SECONDS = "DLR_HEARTBEAT_SECONDS"
GRACE_SECONDS = "DLR_TERMINATION_GRACE_SECONDS"


class InvalidEnvironmentError(Exception):
    """The environment is not that of a worker of an ElasticJob; the message is one sentence for a person."""


@dataclass(frozen=True)
class Environment:
    job_name: str
    namespace: str
    worker_name: str
    worker_index: int
    incarnation: int
    pod_uid: str
    pod_ip: str
    node_name: str = ""
    heartbeat_seconds: float = 10.0
    termination_grace_seconds: float = 30.0

    @property
    def pod_name(self) -> str:
        return f"{self.worker_name}-{self.incarnation}"

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Environment:
        return cls(
            job_name=_text(environ, JOB_NAME),
            namespace=_text(environ, NAMESPACE),
            worker_name=_text(environ, WORKER_NAME),
            worker_index=int(_number(environ, WORKER_INDEX)),
            incarnation=int(_number(environ, INCARNATION)),
            pod_uid=_text(environ, POD_UID),
            pod_ip=_text(environ, POD_IP),
            node_name=environ.get(NODE_NAME, ""),
            heartbeat_seconds=_number(environ, HEARTBEAT_SECONDS, cls.heartbeat_seconds),
            termination_grace_seconds=_number(environ, GRACE_SECONDS, cls.termination_grace_seconds),
        )


def _text(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise InvalidEnvironmentError(
            f"{name} is not set, so this is not a worker Pod of an ElasticJob: submit the job with "
            "`dlr job submit`, or train on this machine alone with `torchrun --standalone`"
        )
    return value


def _number(environ: Mapping[str, str], name: str, default: float | None = None) -> float:
    text = environ.get(name, "") if default is not None else _text(environ, name)
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0:
        raise InvalidEnvironmentError(
            f"{name} is {text!r} but must be a number ≥ 0: the controller sets it, so see what overrides it "
            "in the job's Pod template"
        )
    return value
