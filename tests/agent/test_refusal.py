"""Which refusals are final. The words are those of our own policy, evaluated here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from agent.environment import Environment
from agent.kube.api import AgentApi
from agent.report.elasticworker import last_report
from agent.report.refusal import final_refusal
from controller.errors import error_of
from tests.deploy.test_worker_identity import ELASTIC_WORKER, changed, status_refusals, user

TERMINATING = (
    b'{"code": 403, "reason": "Forbidden", "message": "forbidden: it is being terminated", "details": '
    b'{"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}}'
)


def me(incarnation: int) -> Environment:
    return Environment("digits", "lab", "digits-worker-0", 0, incarnation, "uid", "10.0.0.1")


@pytest.mark.parametrize(("incarnation", "final"), [(1, True), (2, False), (3, False)])
def test_a_worker_that_another_pod_speaks_for_is_final_for_its_predecessors(
    incarnation: int, final: bool
) -> None:
    """For the very Pod that may report, it tells of a token without the Pod's name: that can be mended."""
    report = changed(ELASTIC_WORKER, status__agent={"state": "Failed"})
    (text,) = status_refusals(user(None), report)
    refusal = final_refusal(
        error_of(403, b'{"message": "denied request: %s"}' % text.encode()), me(incarnation)
    )
    assert (refusal == "the Pod digits-worker-0-2 has taken this one's place") is final
    assert (refusal is None) is not final


def test_an_agent_whose_place_is_taken_begins_without_its_predecessors_report() -> None:
    """It is refused the empty patch to which the report is the answer, for good."""

    class Refuses:
        def merge_patch(self, path: str, patch: Mapping[str, Any]) -> dict[str, Any]:
            assert path.endswith("/elasticworkers/digits-worker-0/status") and patch == {}
            said = b'{"message": "only the Pod digits-worker-0-2 may report for this ElasticWorker"}'
            raise error_of(403, said)

    assert last_report(cast(AgentApi, Refuses()), me(1)) == {}


def test_a_namespace_that_terminates_is_final() -> None:
    assert final_refusal(error_of(403, TERMINATING), me(1)) == "the namespace lab is being terminated"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, b'{"message": "elasticworkers is forbidden: User cannot patch"}'),
        (403, b'{"message": "only the Pod other-worker-0-9 may report for this ElasticWorker"}'),
        (403, b'{"message": "no", "details": {"causes": null}}'),
        (403, b"[]"),
        (404, TERMINATING),
        (503, b""),
    ],
)
def test_everything_else_may_be_mended(status: int, body: bytes) -> None:
    assert final_refusal(error_of(status, body), me(1)) is None
