"""Proof that a candidate lives no more: its container has ended, and the kubelet says so.

Each candidate writes its identity, which no other start has, into the termination message of its container.
The kubelet shows that message in the Pod's status once the container has exited, and never before
(https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/). So the message names
the very process that has ended: no clock, no count of restarts, and no status that is behind can be mistaken
for that. Who deletes a Pod object, or marks the Pod failed, writes no such message.
"""

from __future__ import annotations

import re
import socket
import uuid
from pathlib import Path

from controller.resources import Object

TERMINATION_MESSAGE = Path("/dev/termination-log")
"""Where Kubernetes has a container write it, by default."""
_MARK = "leader-election-identity="
_IDENTITY = re.compile(r"(?P<pod>[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)_[-0-9a-f]{36}")


def unique_identity() -> str:
    """Return a new one for each start: writes of the predecessor may still be on their way."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


def pod_of(identity: str) -> str:
    """Return the name of the Pod in which a `unique_identity` was made; empty for any other identity."""
    found = _IDENTITY.fullmatch(identity)
    return found["pod"] if found else ""


def message_of(identity: str) -> str:
    """Return the termination message of the container in which this identity was made."""
    return _MARK + identity


def announce(identity: str, path: Path = TERMINATION_MESSAGE) -> None:
    """Have the kubelet name this identity when the container ends. Without a kubelet, nothing happens.

    Call it before the first write in this name, and only for a `unique_identity`: of one that is used again,
    an earlier container's end would prove nothing.
    """
    try:
        with path.open("r+") as file:  # the kubelet has made it
            file.truncate()
            file.write(message_of(identity))
    except OSError:
        return  # then its Lease has to expire


def has_ended(pod: Object, identity: str) -> bool:
    """Judge whether a container of the Pod has ended in which this identity was announced."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [status.get(key) or {} for status in statuses for key in ("state", "lastState")]
    messages = [(state.get("terminated") or {}).get("message") or "" for state in states]
    # The runtime's own message, if it has one, comes first.
    return any(message.split()[-1:] == [message_of(identity)] for message in messages)
