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
_REMEMBERED = 32
_INVALID = (HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_BARE: dict[str, Any] = {"stacks": [], "step": None, "cause": None, "logTail": ""}
_BARE_MESSAGE = "the API server has refused the text of this failure; the Pod's log has it"


class RefusedSections:
    """Sections that the API server has refused, which are not sent again as they are.

    Of a failure the numbers are sent without the texts, so that it is counted, unless they are refused too.
    """

    def __init__(self) -> None:
        self._refused: list[tuple[str, Any]] = []

    def without(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return a report without what was refused."""
        return {name: self._allowed(name, value) for name, value in status.items()}

    def take_in(self, error: Exception, sent: Mapping[str, Any]) -> list[str]:
        """Take note of a refusal.

        Returns:
            The names of the sections that are left out from now on: those that the answer names, else all
            that can be; none if it is no such refusal, or if there is nothing to leave out.
        """
        if not isinstance(error, ApiError) or error.status not in _INVALID:
            return []
        if any(text in str(error) for text in (LATER_POD, LATER_REPORT, EARLIER_WORKER)):
            return []  # for its order, not for what is in it
        names = [name for name, value in sent.items() if name not in ESSENTIAL and value is not None]
        named = {_SECTION.sub(r"\1", cause.field) for cause in error.causes}
        chosen = [name for name in names if name in named] or names
        others = [each for each in self._refused if each[0] == FAILURE or each[0] not in chosen]
        self._refused = [*others, *((name, sent[name]) for name in chosen)][-_REMEMBERED:]
        return chosen

    def _allowed(self, name: str, value: Any) -> Any:
        if (name, value) not in self._refused:
            return value
        if name != FAILURE:
            return None
        bare = {**value, **_BARE, "message": _BARE_MESSAGE}
        return None if (name, bare) in self._refused else bare
