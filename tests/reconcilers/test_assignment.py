"""When a worker may go, and when its Pod has to."""

from __future__ import annotations

from typing import Any

import pytest

from reconcilers.nodecheck.pod import CheckAssignment
from reconcilers.worker.assignment import JobAssignment
from tests.reconcilers.build import NOW, check, check_worker, job, later, worker


def of_job(**spec: Any) -> JobAssignment:
    return JobAssignment(worker(), {}, job(**spec))


def of_check(template: dict[str, Any] | None = None, **status: Any) -> CheckAssignment:
    more = {"template": template} if template else {}
    return CheckAssignment(check_worker(), {}, check(status=status, **more), None, "image")


@pytest.mark.parametrize(("phase", "seconds"), [("Running", None), ("Suspended", 0)])
def test_pods_of_a_suspended_job_go_as_soon_as_its_status_says_so(phase: str, seconds: float | None) -> None:
    suspended = of_job(suspend=True, status={"phase": phase}, runPolicy={"cleanPodPolicy": "None"})
    assert suspended.seconds_to_cleaning(pod_ended=False, now=NOW) == seconds


@pytest.mark.parametrize(
    ("grace", "pod_ended", "at", "expected"),
    [(None, True, 99, None), (None, False, 0, 10), (None, False, 20, 0), (60, False, 20, 45)],
)
def test_pod_of_a_finished_check_stays_unless_it_outlives_its_grace(
    grace: int | None, pod_ended: bool, at: float, expected: float | None
) -> None:
    spec = {"containers": [{"name": "c", "image": "x"}], "terminationGracePeriodSeconds": grace}
    assignment = of_check({"spec": spec} if grace else None, phase="Succeeded", completionTime=NOW)
    assert assignment.seconds_to_cleaning(pod_ended=pod_ended, now=later(at)) == expected
