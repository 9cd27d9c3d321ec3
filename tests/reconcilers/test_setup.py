from __future__ import annotations

from dataclasses import fields
from typing import Any

from controller.store import Change
from crds.agent_report import AgentReport, ReplicasReport
from crds.wire import to_camel
from reconcilers.nodecheck.wiring import more_of_a_jobs_checks, more_of_an_answer
from reconcilers.predicates import (
    more_than_an_agents_later_reports,
    more_than_progress,
    more_than_status,
)


def raw(**agent: Any) -> dict[str, Any]:
    return {"metadata": {"name": "w"}, "spec": {"index": 0}, "status": {"phase": "Running", "agent": agent}}


DECIDES = {
    "protocol": (1, 2),
    "incarnation": (1, 2),
    "podUid": ("a", "b"),
    "address": ("10.0.0.1", "10.0.0.2"),
    "storePort": (1, 2),
    "localWorldSize": (1, 2),
    "observedRound": (1, 2),
    "state": ("Ready", "Running"),
    "since": ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
    "failure": (None, {"sequence": 1}),
    "departure": (None, {"round": 1}),
    "slow": (None, {"step": 7}),
    "checkpointTrouble": (None, {"reason": "StorageFails"}),
    "livedOn": (None, {"round": 2, "processes": 3}),
    "lingers": (None, "a thread goes on"),
    "progress": ({"step": 1}, {"step": 1, "checkpointStep": 1}),
    "rounds": ([], [{"round": 1}]),
    "memory": ({"step": 1}, {"step": 1, "resumed": {"step": 1}}),
    "replicas": ({"round": 1}, {"round": 2}),
}
"""Parts of a report whose changes decide something about a job, with such a change."""
DOES_NOT_DECIDE = {
    "progress": ({"step": 1}, {"step": 2}),
    "rounds": ([{"round": 1, "lastStep": 1}], [{"round": 1, "lastStep": 2}]),
    "memory": ({"step": 1}, {"step": 2}),
    "shards": ([{"rest": "0-9"}], [{"rest": "0-9", "wants": True}]),
    "replicas": ({"version": 1, "step": 1}, {"version": 2, "step": 2}),
    "series": (None, {"points": []}),
    "usage": (None, {"cpu": 1.0}),
    "network": (None, {"interface": "eth0"}),
    "accelerators": (None, {"count": 8}),
    "check": (None, {"uid": "c", "local": [{"probe": "gemm", "ending": "Passed"}]}),
    "sequence": (1, 2),
    "result": (None, '{"value": 1}'),
    "askedStacks": (None, {"time": "2026-01-01T00:00:00Z"}),
    "silentPeers": (None, [{"index": 1, "incarnation": 1}]),
    "start": (None, {"round": 1}),
}
"""Those whose changes do not, as a check's answers; a job looked at for each of them decides the same again."""


def test_a_part_of_a_report_wakes_the_job_if_it_decides_something_and_each_part_is_one_or_the_other() -> None:
    assert {to_camel(each.name) for each in fields(AgentReport)} == DECIDES.keys() | DOES_NOT_DECIDE.keys()
    for parts, wakes in ((DECIDES, True), (DOES_NOT_DECIDE, False)):
        for field, (before, after) in parts.items():
            assert more_than_progress(Change(raw(**{field: before}), raw(**{field: after}))) == wakes, field
    for part in fields(ReplicasReport):
        change = (raw(replicas={}), raw(replicas={to_camel(part.name): 1}))
        assert more_than_progress(Change(*change)) == (part.name not in ("version", "step"))


def test_an_agents_first_report_wakes_its_pods_reconciler_and_later_ones_do_not() -> None:
    silent, first = raw(), raw(state="Ready", podUid="a")
    assert more_than_an_agents_later_reports(Change(silent, first))
    assert not more_than_an_agents_later_reports(Change(first, raw(state="Running", podUid="a")))
    assert more_than_an_agents_later_reports(Change(first, raw(state="Ready", podUid="b")))


def checked(**agent: Any) -> dict[str, Any]:
    return raw(**agent) | {"spec": {"index": 0, "incarnation": 1}}


def test_answers_to_a_check_wake_it_and_steps_do_not() -> None:
    answered = Change(checked(state="Ready"), checked(state="Ready", check={"uid": "c", "local": []}))
    assert more_of_an_answer(answered)
    step = Change(checked(state="Running"), checked(state="Running", progress={"step": 2}))
    assert not more_of_an_answer(step)


def test_world_and_active_check_of_a_job_concern_its_checks_and_counts_do_not() -> None:
    def job(**status: Any) -> dict[str, Any]:
        return {"metadata": {"name": "j"}, "status": status}

    assert more_of_a_jobs_checks(Change(job(), job(activeCheck="c")))
    assert more_of_a_jobs_checks(
        Change(job(rendezvous={"phase": "Formed"}), job(rendezvous={"phase": "Reforming"}))
    )
    assert not more_of_a_jobs_checks(Change(job(replicas=1), job(replicas=2)))


def a_job(replicas: int = 2, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    known = {"uid": "u", "generation": replicas}  # which counts the changes of the spec
    return {"metadata": known | metadata, "spec": {"replicas": replicas}, "status": {"phase": phase}}


def with_base(base: int, **status: Any) -> dict[str, Any]:
    """Its minimum follows that, and so does its PodDisruptionBudget."""
    found = a_job()
    found["status"] |= {"scaling": {"base": base}} | status
    return found


def test_what_stands_beside_a_job_s_pods_is_not_looked_at_with_each_of_its_statuses() -> None:
    assert not more_than_status(Change(a_job(), a_job(phase="Restarting")))
    assert not more_than_status(Change(with_base(2), with_base(2, growth={"grownFrom": 2})))
    assert not more_than_status(Change(a_job(resourceVersion="1"), a_job(resourceVersion="2")))
    for after in (
        a_job(replicas=3),
        a_job(phase="Failed"),
        a_job(labels={}),
        a_job(ownerReferences=[]),
        with_base(2),
        None,
    ):
        assert more_than_status(Change(a_job(), after))
