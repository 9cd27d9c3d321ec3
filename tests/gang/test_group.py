"""Kubernetes' own PodGroup: what it says, who is in it, and which jobs get one by `auto`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from controller.errors import Forbidden, NotFound
from crds.elasticjob import ElasticJob
from reconcilers.gang.choice import ASK_AGAIN_SECONDS, GangChoice
from reconcilers.gang.podgroup import PodGroup, pod_group_of
from reconcilers.groups.children import group_job
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.worker.job_pod import build_job_pod
from tests.gang.build import gate_of
from tests.reconcilers.build import job, worker
from tests.reconcilers.caches import shaped_cache

JSON = dict[str, Any]
KUBERNETES: JSON = {"schedulingPolicy": {"gang": "kubernetes"}}


def template(**spec: Any) -> JSON:
    return {"spec": {"containers": [{"name": "main", "image": "x"}]} | spec}


def counts(**worker_counts: int) -> JSON:
    return {"replicaStatuses": {"worker": worker_counts}}


def group_of(owner: ElasticJob) -> PodGroup:
    group = pod_group_of(owner)
    assert group is not None
    return group


def test_it_has_the_job_s_minimum_and_priority_and_leaves_the_rest_to_kubernetes() -> None:
    owner = job(
        replicas=4, worker={"minReplicas": 3}, template=template(priorityClassName="high"), **KUBERNETES
    )
    group = group_of(owner)
    assert group.wanted["apiVersion"] == "scheduling.k8s.io/v1beta1"
    policy = {"gang": {"minCount": 3}}
    assert group.wanted["spec"] == {"schedulingPolicy": policy, "priorityClassName": "high"}


@pytest.mark.parametrize(
    ("status", "minimum"),
    [
        ({}, 3),
        (counts(pending=4), 3),
        (counts(pending=3, active=1), 1),
        (counts(pending=3, standby=1), 1),
        (counts(failed=3, succeeded=1), 3),
    ],
)
def test_the_minimum_counts_while_no_pod_runs(status: JSON, minimum: int) -> None:
    owner = job(replicas=4, worker={"minReplicas": 3}, status=status, **KUBERNETES)
    assert group_of(owner).min_member == minimum


def test_each_replica_group_has_a_group_of_its_own() -> None:
    policy = {"replicaGroups": {"workers": 4}}
    whole = job(replicas=8, elasticPolicy=policy, **KUBERNETES).to_wire()
    whole["metadata"] |= {"generation": 1}
    groups = []
    for index in range(2):
        child = group_job(whole, index)
        child["metadata"] |= {"uid": f"uid-{index}"}
        groups.append(group_of(ElasticJob.model_validate(child)))
    assert len({group.name for group in groups}) == 2
    assert [group.min_member for group in groups] == [4, 4]


@pytest.mark.parametrize(
    ("of_group", "of_pod", "is_member"),
    [
        (None, None, True),
        ("high", "high", True),
        ("high", None, True),
        (None, "low", False),
        ("high", "low", False),
    ],
)
def test_pods_of_another_priority_are_no_members(
    of_group: str | None, of_pod: str | None, is_member: bool
) -> None:
    found = {"spec": {"priorityClassName": of_group} if of_group else {}}
    group = group_of(job(template=template(priorityClassName="edited"), **KUBERNETES)).as_found(found)
    pod: JSON = {"metadata": {}, "spec": {"priorityClassName": of_pod} if of_pod else {}}
    group.enlist(pod, "digits-worker-0")
    assert pod["spec"].get("schedulingGroup") == ({"podGroupName": "digits"} if is_member else None)


def test_extra_workers_are_no_members() -> None:
    opportunistic = {"elasticPolicy": {"opportunistic": {"priorityClassName": "idle"}}}
    scaling = {"replicas": 4, "by": "spec", "at": "2026-01-01T00:00:00Z", "base": 2}
    owner = job(
        replicas=4, worker={"maxReplicas": 4}, status={"scaling": scaling}, **opportunistic, **KUBERNETES
    )
    assert group_of(owner).min_member == 2
    members = []
    for index in range(4):
        pod = build_job_pod(owner, worker(index))
        gate_of().enlist(pod, worker(index), owner)
        members.append("schedulingGroup" in pod["spec"])
    assert members == [True, True, False, False]


@pytest.mark.parametrize(
    "owner",
    [
        job(replicas=1),
        job(replicas=4, worker={"minReplicas": 1}),
        job(template=template(schedulerName="kai-scheduler")),
        job(template=template(schedulingGroup={"podGroupName": "mine"})),
        job(template=template(evictionResponders=[{"name": "a.b/c"}])),
        job(schedulingPolicy={"gang": "none"}),
        job(replicaSpecs={name: {"replicas": 2, "template": template()} for name in ("ps", "worker")}),
    ],
    ids=["one worker", "one suffices", "another scheduler", "a group of its own", "responders", "none", "ps"],
)
def test_auto_leaves_alone_whom_a_gang_does_not_help(owner: ElasticJob) -> None:
    assert pod_group_of(owner, is_offered=True) is None


class Server:
    """Answers whether there is a PodGroup."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)

    async def get(self, *_: Any, **__: Any) -> JSON:
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        return {}


@dataclass
class Hand:
    """A clock that the test sets."""

    now: float = 0.0


def choice_of(*answers: Exception | None) -> tuple[GangChoice, Hand]:
    """The choice for jobs a and b, where the API server answers so, and its clock."""
    cache, clock = shaped_cache(), Hand()
    for name in ("a", "b"):
        cache.store(ELASTICJOBS).apply(job(name).to_wire())
    server: Any = Server(*answers)
    return GangChoice(server, cache.store(ELASTICJOBS), lambda: clock.now), clock


@pytest.mark.parametrize(
    ("answer", "is_offered"),
    [
        (None, True),
        (NotFound(404, "NotFound", "", {"name": "digits", "kind": "podgroups"}), True),
        (NotFound(404, "NotFound", "the server could not find the requested resource"), False),
        (Forbidden(403, "Forbidden", "podgroups.scheduling.k8s.io is forbidden"), False),
    ],
    ids=["there", "served", "not served", "no right"],
)
async def test_auto_asks_the_server_once(answer: Exception | None, is_offered: bool) -> None:
    choice, _ = choice_of(answer)
    found = [await choice.group_of(job(name)) for name in ("a", "b")]
    assert [group is not None for group in found] == [is_offered, is_offered]
    assert (choice.chosen_group_of(job("b")) is not None) is is_offered


NOT_SERVED = NotFound(404, "NotFound", "the server could not find the requested resource")
NO_RIGHT = Forbidden(403, "Forbidden", "podgroups.scheduling.k8s.io is forbidden")


@pytest.mark.parametrize("no", [NOT_SERVED, NO_RIGHT], ids=["not served", "no right"])
async def test_a_no_is_remembered_for_a_while_and_a_yes_for_ever(no: Exception) -> None:
    choice, clock = choice_of(no, None)
    for clock.now in (0.0, ASK_AGAIN_SECONDS - 1):
        assert await choice.choose(job("a")) is None and await choice.choose(job("b")) is None
    for clock.now in (ASK_AGAIN_SECONDS, 10 * ASK_AGAIN_SECONDS):
        assert await choice.choose(job("a")) is not None


async def test_the_pods_of_a_job_wait_for_a_group_only_once_its_reconciler_makes_one() -> None:
    choice, clock = choice_of(NO_RIGHT, None)
    assert await choice.group_of(job("a")) is None and await choice.group_of(job("b")) is None
    clock.now = ASK_AGAIN_SECONDS
    assert await choice.choose(job("a")) is not None
    assert await choice.group_of(job("a")) is not None
    assert await choice.group_of(job("b")) is None and choice.chosen_group_of(job("b")) is None
    assert await choice.choose(job("b")) is not None
    assert choice.chosen_group_of(job("b")) is not None


async def test_without_a_use_for_it_nobody_asks() -> None:
    choice, _ = choice_of()
    assert await choice.group_of(job(replicas=1)) is None
    assert await choice.group_of(job(schedulingPolicy={"gang": "volcano"})) is not None
