"""Reports that the API server refuses: some refusals are final, some concern one section."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from agent.environment import Environment
from controller.errors import ApiError, Forbidden, Invalid, NamespaceTerminating
from crds.agent_report import EARLIER_WORKER, LATER_POD, LATER_REPORT

_ONLY_ANOTHER_POD = re.compile(r"only the Pod (?P<worker>\S+)-(?P<incarnation>\d+) may report")
"""Text of deploy/admission/worker-identity.yaml."""


def final_refusal(error: Exception, me: Environment) -> str | None:
    """Return the reason why the API server will accept no more reports of this agent; None if it may.

    Two kinds of status 403 are final: another Pod represents this worker now, or the namespace is being
    terminated. The others, such as a missing role, may be mended while the agent lives. Status 422 is final
    if a later Pod has replaced this one.
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
"""Sections that no report can do without."""
FAILURE = "failure"
_SECTION = re.compile(r"^status\.agent\.(\w+).*$", re.DOTALL)
_INVALID = (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_OF_ITS_ORDER = (LATER_POD, LATER_REPORT, EARLIER_WORKER)
_BARE: dict[str, Any] = {
    **{"stacks": [], "step": None, "cause": None, "logTail": ""},
    "message": "the API server has refused the text of this failure; the Pod's log has it",
}
"""Replacements for the refused texts of a failure."""


def without_refused(sent: Mapping[str, Any], error: ApiError) -> dict[str, Any] | None:
    """Return a report without the sections that the API server has refused.

    These are the sections that the answer names, or else all but the essential ones. A failure is first sent
    without its texts, so that it is counted.

    Returns:
        None if the report was refused for another reason, or nothing can be left out.
    """
    if error.status not in _INVALID or any(text in str(error) for text in _OF_ITS_ORDER):
        return None
    names = [name for name, value in sent.items() if name not in ESSENTIAL and value is not None]
    named = {_SECTION.sub(r"\1", cause.field) for cause in error.causes}
    refused = dict.fromkeys([name for name in names if name in named] or names)
    if FAILURE in refused and sent[FAILURE]["message"] != _BARE["message"]:
        refused[FAILURE] = {**sent[FAILURE], **_BARE}
    return {**sent, **refused} if refused else None
