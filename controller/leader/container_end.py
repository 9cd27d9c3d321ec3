"""Proof that a candidate is gone: its container has ended, and the kubelet reports it.

Each candidate writes its identity, which is unique for each start, into the termination message of its
container. The kubelet shows the message in the Pod's status once the container has exited, and never
before (https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/). So the
message identifies the very process that has ended, unlike a clock, a restart count or an outdated status.
Deleting a Pod object, or marking the Pod failed, writes no such message.
"""

from __future__ import annotations

import re
import socket
import uuid
from pathlib import Path

from controller.resources import Object

TERMINATION_MESSAGE = Path("/dev/termination-log")
"""Kubernetes' default path of the termination message."""
_MARK = "leader-election-identity="
_IDENTITY = re.compile(r"(?P<pod>[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)_[-0-9a-f]{36}")


def unique_identity() -> str:
    """Return a new identity for each start: writes of the predecessor may still arrive."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def pod_of(identity: str) -> str:
    """Return the name of the Pod in which a `unique_identity` was made; empty for any other identity."""
    found = _IDENTITY.fullmatch(identity)
    return found["pod"] if found else ""


def message_of(identity: str) -> str:
    """Return the termination message of the container in which this identity was made."""
    return _MARK + identity


def announce(identity: str, path: Path = TERMINATION_MESSAGE) -> None:
    """Have the kubelet report this identity when the container ends. Does nothing without a kubelet.

    Call it before the first write with this identity, and only for a `unique_identity`: if an identity
    were reused, the end of an earlier container would prove nothing.
    """
    try:
        with path.open("r+") as file:  # the kubelet has made it
            file.truncate()
            file.write(message_of(identity))
    except OSError:
        return  # then others wait for the Lease to expire


def has_ended(pod: Object, identity: str) -> bool:
    """Return whether a container of the Pod that announced this identity has ended."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [status.get(key) or {} for status in statuses for key in ("state", "lastState")]
    messages = [(state.get("terminated") or {}).get("message") or "" for state in states]
    # The runtime's own message, if any, comes first.
    return any(message.split()[-1:] == [message_of(identity)] for message in messages)
