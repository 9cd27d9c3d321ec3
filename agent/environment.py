"""Who this worker is, as its Pod's environment says it (the controller writes it; crds/names.py names it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

JOB_NAME = "DLR_JOB_NAME"
CHECK_NAME = "DLR_CHECK_NAME"
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
    """The environment is not that of a worker; the message is one sentence for a person."""


_NOT_A_WORKER = {
    JOB_NAME: "this is not a worker Pod of an ElasticJob: submit the job with `dlr job submit`, or train on "
    "this machine alone with `torchrun --standalone`",
    CHECK_NAME: "this is not a Pod of a NodeCheck: check nodes with `dlr node-check`, or this machine alone "
    "with `dlr node-check --local`",
}


@dataclass(frozen=True)
class Environment:
    owner_name: str
    """The ElasticJob that it trains for, or the NodeCheck that it tests a node for."""
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
    def read(cls, environ: Mapping[str, str], owner: str = JOB_NAME) -> Environment:
        """Of a worker of the ElasticJob, or of the NodeCheck, that the variable `owner` names."""

        def text(name: str) -> str:
            value = environ.get(name, "")
            if not value:
                raise InvalidEnvironmentError(f"{name} is not set, so {_NOT_A_WORKER[owner]}")
            return value

        return cls(
            owner_name=text(owner),
            namespace=text(NAMESPACE),
            worker_name=text(WORKER_NAME),
            worker_index=int(_number(WORKER_INDEX, text(WORKER_INDEX))),
            incarnation=int(_number(INCARNATION, text(INCARNATION))),
            pod_uid=text(POD_UID),
            pod_ip=text(POD_IP),
            node_name=environ.get(NODE_NAME, ""),
            heartbeat_seconds=_number(
                HEARTBEAT_SECONDS, environ.get(HEARTBEAT_SECONDS) or cls.heartbeat_seconds
            ),
            termination_grace_seconds=_number(
                GRACE_SECONDS, environ.get(GRACE_SECONDS) or cls.termination_grace_seconds
            ),
        )


def _number(name: str, text: str | float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0:
        raise InvalidEnvironmentError(
            f"{name} is {text!r} but must be a number ≥ 0: the controller sets it, so see what overrides it "
            "in the Pod template"
        )
    return value
