"""Which refusals of the API server are final for this agent, so that it need not ask again."""

from __future__ import annotations

import re
from http import HTTPStatus

from agent.environment import Environment
from agent.kube.api import ApiError

NAMESPACE_TERMINATING = "NamespaceTerminating"
"""The cause that the API server names (metav1 and corev1 of Kubernetes: NamespaceTerminatingCause)."""

_ONLY_ANOTHER_POD = re.compile(r"only the Pod (?P<worker>\S+)-(?P<incarnation>\d+) may report")
"""As deploy/admission/worker-identity.yaml puts it."""


def final_refusal(error: Exception, me: Environment) -> str | None:
    """Say why the API server will take nothing more from this agent; None if it may after all.

    Two answers of 403 are final: another Pod speaks for this worker now, and the namespace is being
    terminated. All others may be mended while the agent lives, such as a missing role.
    """
    if not isinstance(error, ApiError) or error.status != HTTPStatus.FORBIDDEN:
        return None
    if NAMESPACE_TERMINATING in error.causes:
        return f"the namespace {me.namespace} is being terminated"
    speaker = _ONLY_ANOTHER_POD.search(str(error))
    if (
        speaker is None
        or speaker["worker"] != me.worker_name
        or int(speaker["incarnation"]) <= me.incarnation
    ):
        return None
    return f"the Pod {me.worker_name}-{speaker['incarnation']} has taken this one's place"
