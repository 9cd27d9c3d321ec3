"""`status.reason` and `status.message`: why a job does not train."""

from __future__ import annotations

import pytest

from crds.elasticworker import WorkerPhase
from crds.job_status import JobWarning
from crds.model import Condition
from crds.phases import JobPhase, RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.job.plan import plan_job
from reconcilers.job.status import why_not_training
from tests.reconcilers.build import NOW, job, later, worker
from tests.reconcilers.judging import seen_of

NO_NODE = {
    "type": "Scheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient cpu",
    "lastTransitionTime": NOW,
}
FORMED = Rendezvous(
    round=1, phase=RendezvousPhase.FORMED, members=[0], incarnations=[1], reason="all are ready"
)
WAITS = Rendezvous(reason="0 of 2 workers are ready")


def said(type_: str, status: str, reason: str, message: str = "") -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message, last_transition_time=NOW)


def warned(type_: str, reason: str, message: str) -> JobWarning:
    return JobWarning(type=type_, reason=reason, message=message, since=NOW)


NOT_SCHEDULED = warned("WorkersUnscheduled", "Unschedulable", "2 Pods cannot be scheduled")
NOT_STARTED = warned("WorkersNotStarted", "ImagePullBackOff", "1 Pod cannot start")
REFUSED = warned("PodsNotAccepted", "PodInvalid", "no such field")
LACKS = said("WorldFormed", "False", "Incomplete", "not running: ps 1")
NO_REPLICAS = said("Running", "False", "NoReplicas", "replicas is 0, so the job has no Pods")
OVER = said("Failed", "True", "RestartLimitExceeded", "4 failures\nand a stack")


@pytest.mark.parametrize(
    ("phase", "found", "world", "why"),
    [
        (None, [], None, ("", "")),
        (JobPhase.RUNNING, [NOT_SCHEDULED], FORMED, ("", "")),
        (JobPhase.PENDING, [], WAITS, ("", WAITS.reason)),
        (JobPhase.PENDING, [NOT_SCHEDULED], WAITS, ("Unschedulable", "2 Pods cannot be scheduled")),
        (
            JobPhase.RESTARTING,
            [NOT_SCHEDULED, NOT_STARTED],
            WAITS,
            ("ImagePullBackOff", "1 Pod cannot start"),
        ),
        (JobPhase.PENDING, [NOT_SCHEDULED, REFUSED], WAITS, ("PodInvalid", "no such field")),
        (JobPhase.PENDING, [LACKS], None, ("Incomplete", "not running: ps 1")),
        (JobPhase.PENDING, [LACKS, NOT_SCHEDULED], None, ("Unschedulable", "2 Pods cannot be scheduled")),
        (JobPhase.PENDING, [NO_REPLICAS], WAITS, ("NoReplicas", "replicas is 0, so the job has no Pods")),
        (JobPhase.FAILED, [OVER, NOT_SCHEDULED], WAITS, ("RestartLimitExceeded", "4 failures")),
    ],
)
def test_the_gravest_hindrance_says_why(
    phase: JobPhase | None,
    found: list[Condition | JobWarning],
    world: Rendezvous | None,
    why: tuple[str, str],
) -> None:
    conditions = [each for each in found if isinstance(each, Condition)]
    warnings = [each for each in found if isinstance(each, JobWarning)]
    assert why_not_training(phase, conditions, warnings, world) == why


def test_a_job_whose_pods_find_no_node_says_so_where_kubectl_get_shows_it() -> None:
    waiting = [worker(index, WorkerPhase.PENDING, conditions=[NO_NODE]) for index in range(2)]
    patch = plan_job(seen_of(job(replicas=2), waiting), later(1)).status_patch
    assert patch["phase"] == "Pending" and patch["reason"] == "Unschedulable"
    assert ": 0/3 nodes are available: 3 Insufficient cpu (digits-worker-0, since " in patch["message"]


def test_a_job_of_no_replicas_says_so_where_kubectl_get_shows_it() -> None:
    patch = plan_job(seen_of(job(replicas=0)), later(1)).status_patch
    assert (patch["reason"], patch["message"][:13]) == ("NoReplicas", "replicas is 0")
