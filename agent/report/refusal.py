"""What becomes of reports that the API server refuses: some refusals are final, some concern one section."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from agent.environment import Environment
from controller.errors import ApiError, Forbidden, Invalid, NamespaceTerminating
from crds.agent_report import EARLIER_WORKER, LATER_POD, LATER_REPORT

_ONLY_ANOTHER_POD = re.compile(r"only the Pod (?P<worker>\S+)-(?P<incarnation>\d+) may report")
"""As deploy/admission/worker-identity.yaml puts it."""


def final_refusal(error: Exception, me: Environment) -> str | None:
    """Say why the API server will take nothing more from this agent; None if it may after all.

    Two answers of 403 are final: another Pod speaks for this worker now, and the namespace is being
    terminated. All others may be mended while the agent lives, such as a missing role. Of 422, those that
    another Pod has followed this one.
    """
    if isinstance(error, Invalid) and LATER_POD in str(error):
        return f"a later Pod of {me.worker_name} has reported"
    if isinstance(error, Invalid) and EARLIER_WORKER in str(error):
        return f"{me.worker_name} was deleted, and another one has its name"
    if isinstance(error, NamespaceTerminating):
        return f"the namespace {me.namespace} is being terminated"
    if not isinstance(error, Forbidden):
        return None
    speaker = _ONLY_ANOTHER_POD.search(str(error))
    if (
        speaker is None
        or speaker["worker"] != me.worker_name
        or int(speaker["incarnation"]) <= me.incarnation
    ):
        return None
    return f"the Pod {me.worker_name}-{speaker['incarnation']} has taken this one's place"


ESSENTIAL = frozenset(
    (
        *("protocol", "incarnation", "sequence", "podUid", "address", "storePort"),
        *("localWorldSize", "state", "since", "observedRound"),
    )
)
"""Sections of a report without which it says nothing."""
FAILURE = "failure"
_SECTION = re.compile(r"^status\.agent\.(\w+).*$", re.DOTALL)
_INVALID = (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_OF_ITS_ORDER = (LATER_POD, LATER_REPORT, EARLIER_WORKER)
_BARE: dict[str, Any] = {
    **{"stacks": [], "step": None, "cause": None, "logTail": ""},
    "message": "the API server has refused the text of this failure; the Pod's log has it",
}
"""What a failure is told as whose texts are refused."""


def without_refused(sent: Mapping[str, Any], error: ApiError) -> dict[str, Any] | None:
    """Return what is left of a report without the sections that the API server has refused.

    These are those that the answer names, else all but the essential ones. Of a failure the numbers are sent
    without the texts, so that it is counted, unless they are refused too.

    Returns:
        None where it was refused for another reason, or nothing can be left out.
    """
    if error.status not in _INVALID or any(text in str(error) for text in _OF_ITS_ORDER):
        return None
    names = [name for name, value in sent.items() if name not in ESSENTIAL and value is not None]
    named = {_SECTION.sub(r"\1", cause.field) for cause in error.causes}
    refused = dict.fromkeys([name for name in names if name in named] or names)
    if FAILURE in refused and sent[FAILURE]["message"] != _BARE["message"]:
        refused[FAILURE] = {**sent[FAILURE], **_BARE}
    return {**sent, **refused} if refused else None
