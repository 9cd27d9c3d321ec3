"""The identity of this worker, from its Pod's environment, and its port for other agents."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.connection.handshake import key_from_text
from agent.connection.listener import Listener
from agent.connection.store_server import StoreServer
from agent.facts.world import Member
from crds import names

logger = logging.getLogger(__name__)

SHARED_MEMORY = "/dev/shm"
"""Directory in every container, which is writable even if the root file system is not."""

MARGIN_SECONDS = 3.0
"""Part of the Pod's grace period for the last report and the agent's own end."""

LONGEST_GRACE_SECONDS = 24 * 86_400.0
"""Longest grace period: poll(2) counts milliseconds in 31 bits."""


class InvalidEnvironmentError(Exception):
    """The environment is not that of a worker; the message is one sentence for the user."""


_NOT_A_WORKER = {
    names.ENV_JOB_NAME: "this is not a worker Pod of an ElasticJob: submit the job with `dlr job submit`, or "
    "train on this machine alone with `dlr run --standalone`",
    names.ENV_CHECK_NAME: "this is not a Pod of a NodeCheck: check nodes with `dlr node-check`, or this "
    "machine alone with `dlr node-check --local`",
}


@dataclass(frozen=True)
class Environment:
    """Identity and settings of a worker, from its Pod."""

    owner_name: str
    """Name of its ElasticJob or NodeCheck."""
    namespace: str
    worker_name: str
    worker_index: int
    incarnation: int
    pod_uid: str
    pod_ip: str
    node_name: str = ""
    heartbeat_seconds: float = 10.0
    termination_grace_seconds: float = 30.0
    memory_bytes: int = 0
    """Bytes for checkpoints in memory; 0 if the job asks for none."""
    memory_replicas: int = 0
    persist_on_failure: bool = False
    """Whether a checkpoint in memory is also written to storage when training resumes from it after a
    failure."""
    spare_processes: int = 0
    """Number of spares for each training process."""
    replica_type: str = names.WORKER
    grouped_job: str = ""
    """Job of which this worker's job is a replica group; empty if it is none."""
    group_index: int = 0
    key: bytes = field(default=b"", repr=False)
    """The job's key, which authenticates agents to each other; empty if there is none."""

    @property
    def pod_name(self) -> str:
        return f"{self.worker_name}-{self.incarnation}"

    @property
    def member(self) -> Member:
        """The worker's slot and incarnation."""
        return Member(self.worker_index, self.incarnation)

    @classmethod
    def take(cls, environ: MutableMapping[str, str], owner: str = names.ENV_JOB_NAME) -> Environment:
        """Read the environment of an agent, and remove the key, which its child processes must not have.

        Args:
            owner: see `read`.

        Raises:
            InvalidEnvironmentError: this is no such Pod, or it has no key.
        """
        me = cls.read(environ, owner)
        if not me.key:
            raise InvalidEnvironmentError(
                f"{names.ENV_JOB_KEY} is not set: the controller sets it from the Secret of the job's key, "
                "so see what overrides it in the Pod template"
            )
        environ.pop(names.ENV_JOB_KEY)
        return me

    @classmethod
    def read(cls, environ: Mapping[str, str], owner: str = names.ENV_JOB_NAME) -> Environment:
        """Read the environment of a worker's Pod.

        Args:
            owner: the variable that names the ElasticJob, or the NodeCheck.

        Raises:
            InvalidEnvironmentError: this is no such Pod, or a variable is invalid.
        """

        def text(name: str) -> str:
            value = environ.get(name, "")
            if not value:
                raise InvalidEnvironmentError(f"{name} is not set, so {_NOT_A_WORKER[owner]}")
            return value

        def number(name: str, default: float = 0) -> float:
            return _number(name, environ.get(name) or default)

        try:
            key = key_from_text(environ[names.ENV_JOB_KEY]) if names.ENV_JOB_KEY in environ else b""
        except ValueError as error:
            raise InvalidEnvironmentError(str(error)) from error
        return cls(
            owner_name=text(owner),
            namespace=text(names.ENV_NAMESPACE),
            worker_name=text(names.ENV_WORKER_NAME),
            worker_index=int(_number(names.ENV_WORKER_INDEX, text(names.ENV_WORKER_INDEX))),
            incarnation=int(_number(names.ENV_INCARNATION, text(names.ENV_INCARNATION))),
            pod_uid=text(names.ENV_POD_UID),
            pod_ip=text(names.ENV_POD_IP),
            replica_type=environ.get(names.ENV_REPLICA_TYPE) or cls.replica_type,
            node_name=environ.get(names.ENV_NODE_NAME, ""),
            heartbeat_seconds=number(names.ENV_HEARTBEAT_SECONDS, cls.heartbeat_seconds),
            termination_grace_seconds=number(names.ENV_GRACE_SECONDS, cls.termination_grace_seconds),
            memory_bytes=int(number(names.ENV_MEMORY_BYTES)),
            memory_replicas=int(number(names.ENV_MEMORY_REPLICAS)),
            persist_on_failure=bool(number(names.ENV_MEMORY_PERSIST)),
            spare_processes=int(number(names.ENV_SPARE_PROCESSES)),
            grouped_job=environ.get(names.ENV_GROUPED_JOB, ""),
            group_index=int(number(names.ENV_GROUP_INDEX)),
            key=key,
        )


def listen(me: Environment, cleanup: contextlib.ExitStack) -> tuple[Listener, StoreServer]:
    """Listen for the agents of other workers, and serve the store that they meet through.

    Raises:
        InvalidEnvironmentError: the Pod does not have the address that its environment names.
    """
    try:
        listener = Listener(me.pod_ip, me.key)
    except OSError as error:
        raise InvalidEnvironmentError(f"cannot listen on {names.ENV_POD_IP}={me.pod_ip}: {error}") from error
    cleanup.callback(listener.close)
    store = StoreServer(listener)
    cleanup.callback(store.close)
    return listener, store


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


def grace_of_processes(termination_grace_seconds: float) -> float:
    """Return the part of the Pod's grace period for the agent's processes, from SIGTERM to SIGKILL."""
    grace_seconds = max(termination_grace_seconds - MARGIN_SECONDS, termination_grace_seconds / 2)
    return min(grace_seconds, LONGEST_GRACE_SECONDS)


def ensure_temporary_directory(environ: MutableMapping[str, str]) -> None:
    """Make sure that `tempfile` has a directory, in this process and in the training processes.

    A container may have none (`readOnlyRootFilesystem`, and no emptyDir).

    Args:
        environ: environment of the training processes; TMPDIR is added if nothing else is writable.

    Raises:
        InvalidEnvironmentError: no directory is writable.
    """
    try:
        tempfile.gettempdir()
        return
    except FileNotFoundError as error:
        if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
            raise InvalidEnvironmentError(
                "no directory for temporary files can be written to: mount an emptyDir at /tmp in the Pod "
                "template"
            ) from error
    environ["TMPDIR"] = tempfile.tempdir = SHARED_MEMORY
    logger.warning(
        "no directory for temporary files can be written to, so %s is used, whose space NCCL and data "
        "loaders need too: mount an emptyDir at /tmp in the Pod template",
        SHARED_MEMORY,
    )


def bound(server: socket.socket, name: str) -> str:
    """Bind a Unix socket of this name in a directory of its own, and return its path.

    A directory for temporary files may be unfit: its path may be longer than the 107 bytes of an address, or
    its file system may not support sockets.
    """
    directory = tempfile.mkdtemp(prefix="dlr_")
    try:
        server.bind(f"{directory}/{name}")
    except OSError:
        Path(directory).rmdir()
        directory = tempfile.mkdtemp(prefix="dlr_", dir=SHARED_MEMORY)
        server.bind(f"{directory}/{name}")
    return f"{directory}/{name}"
