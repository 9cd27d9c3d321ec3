"""PodGroups and disruption budgets: what they say, and how Pods are enlisted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from localcluster.scheduler.gangs import group_of
from reconcilers.gang.podgroup import pod_group_of
from reconcilers.worker.companions import budget_of
from reconcilers.worker.job_pod import build_job_pod
from tests.gang.build import gate_of
from tests.reconcilers.build import job, worker


def gang(kind: str, replicas: int = 4, **spec: Any) -> ElasticJob:
    return job(replicas=replicas, schedulingPolicy={"gang": kind}, **spec)


def template(metadata: Any = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "x"}]
    return {"metadata": metadata or {}, "spec": {"containers": containers} | spec}


def enlisted_pod(owner: ElasticJob, of: ElasticWorker) -> dict[str, Any]:
    pod = build_job_pod(owner, of)
    gate_of().enlist(pod, of, owner)
    return pod


def test_volcano_s_group_and_pods() -> None:
    owner = gang("volcano")
    group = pod_group_of(owner)
    assert group is not None
    assert (group.wanted["apiVersion"], group.wanted["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert group.wanted["spec"] == {"minMember": 4}
    pod = enlisted_pod(owner, worker(2))
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "digits"
    assert pod["metadata"]["annotations"]["volcano.sh/task-spec"] == "digits-worker-2"
    assert pod["spec"]["schedulerName"] == "volcano"


def test_volcano_is_told_queue_and_priority_of_the_template() -> None:
    annotations = {"scheduling.volcano.sh/queue-name": "research", "volcano.sh/task-spec": "mine"}
    owner = gang(
        "volcano",
        template=template({"annotations": annotations}, priorityClassName="high", schedulerName="volcano-2"),
    )
    group = pod_group_of(owner)
    assert group is not None
    assert group.wanted["spec"] == {"minMember": 4, "queue": "research", "priorityClassName": "high"}
    pod = enlisted_pod(owner, worker())
    assert pod["spec"]["schedulerName"] == "volcano-2"
    assert pod["metadata"]["annotations"]["volcano.sh/task-spec"] == "mine"


@pytest.mark.parametrize("kind", ["volcano", "coscheduling"])
def test_workers_alone_are_the_gang(kind: str) -> None:
    containers = {"containers": [{"name": "a", "image": "x"}]}
    types = {name: {"replicas": 2, "template": {"spec": containers}} for name in ("ps", "worker")}
    owner = ElasticJob.model_validate(
        {
            "metadata": {"name": "digits", "namespace": "default", "uid": "u"},
            "spec": {"replicaSpecs": types, "schedulingPolicy": {"gang": kind}},
        }
    )
    ps = worker().model_copy(update={"spec": worker().spec.model_copy(update={"type": "ps"})})
    pod = enlisted_pod(owner, ps)
    assert group_of(pod) is None
    assert "schedulerName" not in pod["spec"]
    assert "scheduling.k8s.io/group-name" not in pod["metadata"]["annotations"]


@given(units=st.integers(1, 50), unit=st.integers(1, 8), least=st.integers(1, 400))
def test_group_and_budget_have_the_same_minimum(units: int, unit: int, least: int) -> None:
    replicas = units * unit
    bounds = {"minReplicas": min(least, replicas)}
    owner = gang("coscheduling", replicas, worker=bounds, elasticPolicy={"nodeUnit": unit})
    group, budget = pod_group_of(owner), budget_of(owner)
    assert group is not None and 1 <= group.min_member <= replicas
    assert (budget is None) == (group.min_member == replicas), "who can spare none is in no drain's way"
    assert budget is None or budget["spec"]["minAvailable"] == group.min_member
