"""What of a job's status is for people is written once a second at most; decisions, acts and Events never wait."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.agent_report import AgentState
from crds.job_status import ElasticJobStatus, JobWarning
from reconcilers.job.plan import plan_job
from reconcilers.job.published import FOR_PEOPLE, WRITE_SECONDS, seconds_to_write, world_spec
from reconcilers.look import ObservedJob
from reconcilers.observed.status_patch import validated_patch
from tests.reconcilers.api import merged
from tests.reconcilers.build import NOW, job, later, report, worker
from tests.reconcilers.test_job_plan import lost, seen, settled, trains

FORMING = {"phase": "Forming", "round": 0, "reason": "1 of 3 workers are ready"}
FIELDS = tuple(field.alias or name for name, field in ElasticJobStatus.model_fields.items())


def forming(workers: int, ready: int, known: ObservedJob | None = None) -> ObservedJob:
    """A job that waits for its workers.

    Args:
        known: the look that was written before.
    """
    crew = [
        worker(index, **({"agent": report(index, AgentState.READY, 0).to_wire()} if index < ready else {}))
        for index in range(workers)
    ]
    if known is None:
        return seen(crew, job(replicas=workers, status={"phase": "Pending", "rendezvous": FORMING}))
    status = merged(known.raw["status"], plan_job(known, NOW).status_patch)
    return seen(crew, known.job.model_validate({**known.job.to_wire(), "status": status}))


@pytest.mark.parametrize(
    ("group", "waits"),
    [
        ({"version": 7}, True),
        ({"round": 2, "ready": False}, False),
        ({"version": 7, "ready": True}, False),
        ({"brokenVersion": 7}, False),
        ({"lateVersion": 7, "lateGroups": [2]}, False),
        ({"leftOutVersion": 8}, False),
        (None, False),
    ],
)
def test_of_a_replica_groups_progress_versions_wait_alone(group: dict[str, Any] | None, waits: bool) -> None:
    assert (seconds_to_write({"replicaGroup": group}, {}, 0.0) > 0) == waits


@given(st.sets(st.sampled_from(FIELDS), min_size=1))
def test_what_agents_see_and_the_phase_never_wait(fields: set[str]) -> None:
    """Whatever the next look could not find again is written at once, too."""
    status: dict[str, Any] = {field: {} for field in fields}
    waits = seconds_to_write(status, {}, 0.0) > 0
    assert waits == (fields <= FOR_PEOPLE)
    if waits:
        assert world_spec({"status": status, "metadata": {}}) == world_spec({"status": {}, "metadata": {}})


@pytest.mark.parametrize("patch", [{"rendezvous": None}, {"goodput": None}, {"goodput": {"state": "Down"}}])
def test_an_end_and_the_state_of_the_account_do_not_wait(patch: dict[str, Any]) -> None:
    assert seconds_to_write({"message": "x"} | patch, {}, 0.0) == 0


def test_a_worker_that_becomes_ready_is_counted_a_moment_later_with_all_that_are() -> None:
    found = replace(forming(3, 2, forming(3, 1)), status_age_seconds=0.1)
    early = plan_job(found, NOW)
    assert early.status_patch == {} and early.acts == () == early.events
    assert early.look_again_seconds == pytest.approx(0.9)
    written = plan_job(replace(found, status_age_seconds=WRITE_SECONDS), NOW).status_patch
    assert written["rendezvous"] == {"waitsFor": "2 of at least 3 workers are ready"}


def test_the_world_that_forms_and_the_one_that_breaks_wait_for_nothing() -> None:
    formed = plan_job(replace(forming(3, 3, forming(3, 2)), status_age_seconds=0.0), NOW)
    assert formed.status_patch["rendezvous"]["phase"] == "Formed"
    known = settled(seen(map(trains, range(3)))).job
    broken = seen([lost(0), *map(trains, (1, 2))], known)
    plan = plan_job(replace(broken, status_age_seconds=0.0), later(5))
    assert plan.status_patch["rendezvous"]["phase"] == "Reforming" and plan.acts


def test_what_is_said_from_outside_is_written_without_control_characters_and_once() -> None:
    warned = JobWarning(
        type="SidecarsFailed", reason="", message="a bell \x07, a \x1b[31mcolour\r\nand a line", since=NOW
    )
    status = ElasticJobStatus(warnings=[warned])
    patch = validated_patch({}, status)
    assert patch["warnings"][0]["message"] == "a bell  , a colour\nand a line"
    assert validated_patch(patch, status) == {}
