"""Failures of an NVLink domain: its switch is blamed, once, and no node of it or of another domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from crds.agent_report import AgentState
from crds.elasticworker import ExitClass
from crds.job_status import JobFailure
from crds.names import LABEL_JOB, LABEL_UNIT
from reconcilers.failure.hangs import ANSWER_SECONDS
from reconcilers.failure.policy import Assessment
from reconcilers.job.workers import Relaunch, relaunched
from reconcilers.worker.job_pod import build_job_pod
from tests.reconcilers.build import failure, job, worker
from tests.reconcilers.failure_life import REFORMING, Life
from tests.reconcilers.test_culprit import hang

CONTAINED = "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"
CLOSED = "RuntimeError: NCCL error: remote process exited or there was a network error"
RACKS = "abcd"
INSIDE = "torch/distributed/distributed_c10d.py:3252 in all_reduce: work.wait()\nmoe.py:88 in dispatch"
OUTSIDE = "torch/distributed/distributed_c10d.py:3252 in all_reduce: work.wait()\ntrain.py:14 in main"


def sixteen(**policy: Any) -> Life:
    """A job that trains in four domains of four workers."""
    life = Life.of(16, worker={"minReplicas": 4}, elasticPolicy={"domain": "auto"} | policy)
    for index, each in enumerate(life.workers):
        status = each.status.model_copy(update={"domain": RACKS[index // 4]})
        life.workers[index] = each.model_copy(update={"status": status})
    life.train()
    return life


def say_failed(life: Life, *indices: int, after: float, message: str = CONTAINED, **more: Any) -> None:
    for index in indices:
        told = failure(index, round=1, seconds=after, message=message, **more)
        life.say(index, AgentState.FAILED, 1, failure=told)


def blamed(life: Life) -> JobFailure:
    assert life.job.status.last_failure is not None
    return life.job.status.last_failure


def renewed(found: Assessment) -> set[str]:
    return set(found.renewals)


RACK_C = {"w8", "w9", "w10", "w11"}


def test_a_contained_nvlink_fault_of_one_domain_is_its_switch_though_all_others_fail_within_seconds() -> None:
    """marin #8934: one node, half a second later its seven neighbours, within 7 s every rack; half of all
    tasks with the same CUDA error. It was silent for a quarter of an hour before."""
    life = sixteen()
    say_failed(life, 9, after=900.0)
    life.look()
    assert blamed(life).worker == "digits-worker-9" and blamed(life).domain is None
    say_failed(life, 8, 10, 11, after=900.5)
    found = life.look()
    assert blamed(life).domain == "c" and renewed(found) == RACK_C
    assert "the switch of domain c" in life.world.reason, "what is told of the world that broke"
    say_failed(life, 0, 1, 4, 5, 12, 13, after=907.0)
    say_failed(life, 2, 3, 6, 7, 14, 15, after=907.0, message=CLOSED)
    found = life.look()
    assert (blamed(life).domain, blamed(life).worker) == ("c", "digits-worker-9")
    assert renewed(found) == RACK_C, "no neighbour gets another Pod"
    assert {renewal.avoids_domain for renewal in found.renewals.values()} == {"c"}
    assert life.job.status.restarts == {"HardwareError": 1} and life.budget.spent == {"HardwareError": 1}
    told = [message for _, reason, message in life.events if reason == "WorldBroken" and "switch" in message]
    assert len(told) == 1


def test_all_reports_at_once_are_one_failure_of_the_domain_of_the_first() -> None:
    life = sixteen()
    say_failed(life, 0, 1, 2, 12, 13, 14, after=7.0)
    say_failed(life, 8, 9, 10, 11, after=0.5)
    first = life.look()
    assert blamed(life).domain == "c" and not first.renewals and life.world.phase is REFORMING
    assert life.world.reason.startswith("the switch of domain c, whose workers failed alike, first ")
    assert renewed(life.look()) == RACK_C
    assert life.job.status.restarts == {"HardwareError": 1}


def test_workers_behind_the_switch_that_lost_a_peer_first_leave_too() -> None:
    life = sixteen()
    say_failed(life, 8, 9, 10, after=0.5)
    say_failed(life, 11, after=0.6, message=CLOSED)
    life.look()
    assert renewed(life.look()) == RACK_C


@pytest.mark.parametrize(
    ("failed", "message", "policy", "renewed_one"),
    [
        ((8,), CONTAINED, {}, {"w8"}),
        ((8, 9), CONTAINED, {}, {"w8"}),
        ((0, 4, 8, 12), CONTAINED, {}, {"w0"}),
        ((8, 9, 10, 11), "ValueError: bad", {}, set()),
        ((8, 9, 10, 11), CONTAINED, {"domain": None}, {"w10"}),
    ],
    ids=["one node", "half of a domain", "several domains", "an error of the script", "no domains"],
)
def test_other_failures_are_of_no_switch(
    failed: tuple[int, ...], message: str, policy: dict[str, Any], renewed_one: set[str]
) -> None:
    """The first is blamed; of several at once, the first by name."""
    life = sixteen(**policy)
    say_failed(life, *failed, after=0.5, message=message)
    life.look()
    assert blamed(life).domain is None and renewed(life.look()) == renewed_one


def test_a_domain_that_waits_at_a_place_of_its_own_is_named_and_stays() -> None:
    """A hang is no proof: the processes start again in place."""
    life = sixteen()
    for index in range(16):
        inside = index // 4 == 2
        told = failure(index, round=1, **hang(index, waits=True, frames=INSIDE if inside else OUTSIDE))
        life.say(index, AgentState.FAILED if not index else AgentState.READY, 1, failure=told)
    life.look()
    assert blamed(life).exit_class == ExitClass.HANG and blamed(life).domain == "c"
    assert not life.look().renewals


def test_of_a_hang_in_which_all_wait_at_one_place_no_domain_is_blamed() -> None:
    life = sixteen()
    for index in range(16):
        told = failure(index, round=1, **hang(index, waits=True, frames=OUTSIDE))
        life.say(index, AgentState.FAILED if not index else AgentState.READY, 1, failure=told)
    life.look(ANSWER_SECONDS + 1)
    assert blamed(life).exit_class == ExitClass.HANG and blamed(life).domain is None


# --- Pods --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoRoom:
    def changed_memory(self, *_: Any, **__: Any) -> None:
        return None


def preferences(**more: Any) -> list[tuple[int, str, list[str]]]:
    spec = {key: more.pop(key) for key in ("excluded_domain",) if key in more}
    slot = worker(0, **more)
    slot = slot.model_copy(update={"spec": slot.spec.model_copy(update=spec)})
    made = build_job_pod(job(elasticPolicy={"domain": "rack"}), slot)
    affinity = (made["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    wishes = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return [
        (wish["weight"], term["operator"], term["values"])
        for wish in wishes
        for term in wish["preference"].get("matchExpressions", ())
    ]


def test_the_next_pod_of_a_slot_prefers_its_domain_unless_the_switch_failed() -> None:
    assert preferences() == []
    assert preferences(domain="c") == [(50, "In", ["c"])]
    assert preferences(domain="c", excluded_domain="c") == [(100, "NotIn", ["c"])]
    assert preferences(domain="d", excluded_domain="c") == [(100, "NotIn", ["c"]), (50, "In", ["d"])]


def test_the_first_pods_of_a_unit_prefer_to_share_a_domain() -> None:
    def made(index: int, **more: Any) -> tuple[str | None, list[Any]]:
        pod = build_job_pod(
            job(replicas=8, elasticPolicy={"domain": "rack", "nodeUnit": 4}), worker(index, **more)
        )
        affinity = (pod["spec"].get("affinity") or {}).get("podAffinity") or {}
        wishes = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        return pod["metadata"]["labels"].get(LABEL_UNIT), [wish["podAffinityTerm"] for wish in wishes]

    (unit, (wish,)) = made(5)
    assert unit == "1" and wish["topologyKey"] == "rack"
    assert wish["labelSelector"]["matchLabels"] == {LABEL_JOB: "digits", LABEL_UNIT: "1"}
    assert made(3)[0] == "0"
    assert made(5, domain="c") == ("1", []), "its last domain is where it rather goes"


def test_a_worker_behind_a_failed_switch_is_relaunched_in_another_domain() -> None:
    life = sixteen()
    say_failed(life, 8, 9, 10, 11, after=0.5)
    life.look()
    renewal = life.look().renewals["w10"]
    act = relaunched(Relaunch(life.workers[10], (), (), (), renewal.reason), NoRoom(), renewal)  # type: ignore[arg-type]
    assert act.body is not None and act.body["spec"]["excludedDomain"] == "c"
    assert "the switch of domain c" in act.events[0].message
