"""What is refused of ScalePlans, each with its sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from crds.elasticjob import ElasticJob
from crds.scaleplan import ScalePlan
from reconcilers.observed.suitable import Sizes
from reconcilers.scaleplan.plan_request import impossible, refusal, request_of
from tests.reconcilers.build import job, worker

NODES = [
    {"metadata": {"name": "small"}, "status": {"allocatable": {"cpu": "16", "memory": "32Gi"}}},
    {"metadata": {"name": "large"}, "status": {"allocatable": {"cpu": "8", "memory": "64Gi"}}},
]
TEMPLATE = {
    "spec": {
        "containers": [
            {"name": "main", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
            {"name": "log", "image": "x", "resources": {"requests": {"memory": "1Gi"}}},
        ]
    }
}


def four(**worker_spec: Any) -> ElasticJob:
    bounds = {"minReplicas": 2, "maxReplicas": 8} | worker_spec
    return job(replicas=4, template=TEMPLATE, worker=bounds, elasticPolicy={"nodeUnit": 2})


def plan(labels: Mapping[str, str] | None = None, **spec: Any) -> ScalePlan:
    metadata = {"name": "p", "namespace": "default", "uid": "uid-p", "labels": dict(labels or {})}
    return ScalePlan.model_validate({"metadata": metadata, "spec": {"ownerJob": "digits"} | spec})


def of_worker(**asked: Any) -> dict[str, Any]:
    return {"replicaResourceSpecs": {"worker": asked}}


def why_not(asked: Mapping[str, Any], of: ElasticJob | None = None, labels: Any = None) -> tuple[str, str]:
    workers = [worker(index, incarnation=3 if index == 1 else 1) for index in range(4)]
    found = refusal(plan(labels, **asked), of or four(), workers, Sizes(NODES))
    assert found is not None, "it is not refused"
    return found.reason, found.message


COUNT = "spec.replicaResourceSpecs[worker].replicas"
MEMORY = "spec.replicaResourceSpecs[worker].resource[memory]"


@pytest.mark.parametrize(
    ("asked", "reason", "message"),
    [
        (
            {"replicaResourceSpecs": {"evaluator": {"replicas": 1}}},
            "UnknownType",
            "spec.replicaResourceSpecs[evaluator]: the job digits has no type evaluator, only worker",
        ),
        (
            {"replicaResourceSpecs": {"dlrover-master": {"replicas": 1}}},
            "UnknownType",
            "spec.replicaResourceSpecs[dlrover-master]: dlr has no master Pod: dlrover-master cannot be scaled",
        ),
        (
            of_worker(replicas=10),
            "AboveMaximum",
            f"{COUNT}: 10 Pods of type worker, more than the job's maxReplicas, 8",
        ),
        (
            of_worker(replicas=0),
            "BelowMinimum",
            f"{COUNT}: 0 Pods of type worker, fewer than the job's minReplicas, 2",
        ),
        (
            of_worker(replicas=5),
            "NotWholeUnits",
            f"{COUNT}: 5 Pods of type worker, not a multiple of elasticPolicy.nodeUnit, 2",
        ),
        (
            {"migratePods": [{"id": 0}, {"name": "other-worker-0"}]},
            "WorkerNotFound",
            "spec.migratePods[1].name: other-worker-0 is no worker of digits",
        ),
        (
            {"migratePods": [{"name": "digits-worker-1-2"}]},
            "WorkerNotFound",
            "spec.migratePods[0].name: digits-worker-1-2 does not exist any more: digits-worker-1-3 has replaced it",
        ),
        (
            {"removePods": [{"name": "digits-worker-1"}], **of_worker(replicas=4)},
            "NotSupported",
            "spec.removePods: no plan removes single Pods: ask for a count, in spec.replicaResourceSpecs, or for "
            "other Pods, in spec.migratePods",
        ),
        (
            {"createPods": [{"resource": {"cpu": "1"}}]},
            "NotSupported",
            "spec.createPods[0].resource: ask for resources by type, in spec.replicaResourceSpecs",
        ),
        (
            of_worker(resource={"memory": "63.5Gi"}),
            "NoNodeLargeEnough",
            f"{MEMORY}: no node has 63.5Gi beside the Pod's other containers; large has most, 64Gi",
        ),
        (
            of_worker(resource={"cpu": 32}),
            "NoNodeLargeEnough",
            "spec.replicaResourceSpecs[worker].resource[cpu]: no node has 32; small has most, 16",
        ),
        (
            of_worker(resource={"cpu": "12", "memory": "48Gi"}),
            "NoNodeLargeEnough",
            "spec.replicaResourceSpecs[worker].resource: no node has cpu 12 and memory 48Gi together",
        ),
        (
            of_worker(resource={"memory": "lots"}),
            "NotAQuantity",
            f"{MEMORY}: 'lots' is not a quantity such as 500m, 2 or 1.5Gi",
        ),
        (of_worker(resource={"memory": "-1Gi"}), "NotAQuantity", f"{MEMORY}: -1Gi is negative"),
        (
            of_worker(resource={"nvidia.com/gpu": "500m"}),
            "NotAQuantity",
            "spec.replicaResourceSpecs[worker].resource[nvidia.com/gpu]: 500m is not a whole number",
        ),
        (
            {},
            "NothingAsked",
            "spec: the plan requests nothing: no counts, no resources, and no Pods",
        ),
    ],
)
def test_bad_plans_are_refused_with_the_field_and_the_reason(
    asked: Mapping[str, Any], reason: str, message: str
) -> None:
    assert why_not(asked) == (reason, message)


def test_minimum_of_the_command_holds_as_well() -> None:
    command = {"command": ["torchrun", "--nnodes=2:$NODE_NUM", "train.py"]}
    template = {"spec": {"containers": [{"name": "main", "image": "x"} | command]}}
    found = why_not(of_worker(replicas=1), job(replicas=4, template=template))
    assert found[0] == "BelowMinimum" and "fewer than the job's --nnodes minimum, 2" in found[1]
    command["command"][1] = "--nnodes=$NODE_NUM:$NODE_NUM"
    fixed = job(replicas=4, template={"spec": {"containers": [{"name": "main", "image": "x"} | command]}})
    assert refusal(plan(**of_worker(replicas=1)), fixed, [], Sizes(NODES)) is None


def test_automatic_plan_keeps_off_types_that_are_not_to_scale_and_within_the_limits() -> None:
    auto = {"scale-type": "auto"}
    found = why_not(of_worker(replicas=6), four(autoScale=False), auto)
    said = "metadata.labels[scale-type]: the plan is automatic, and the job's replicaSpecs[worker].autoScale"
    assert found == ("AutoScaleDisabled", f"{said} is false")
    limited = job(replicas=4, template=TEMPLATE, resourceLimits={"memory": "10Gi"})
    found = why_not(of_worker(replicas=6), limited, auto)
    assert found[0] == "AboveResourceLimits"
    assert found[1].endswith("would request 12Gi of memory in total, more than its resourceLimits, 10Gi")
    assert refusal(plan(auto, **of_worker(replicas=5)), limited, [], Sizes(NODES)) is None
    assert refusal(plan(**of_worker(replicas=6)), limited, [], Sizes(NODES)) is None, "a person may"
    lowered = job(replicas=8, template=TEMPLATE, resourceLimits={"memory": "10Gi"})
    assert refusal(plan(auto, **of_worker(replicas=7)), lowered, [], Sizes(NODES)) is None, (
        "it gives some back"
    )
    assert why_not(of_worker(replicas=9), lowered, auto)[0] == "AboveResourceLimits"


@pytest.mark.parametrize(
    ("of", "reason", "message"),
    [
        (None, "JobNotFound", "spec.ownerJob: there is no ElasticJob digits"),
        (job(suspend=True), "JobSuspended", "spec.ownerJob: the job digits is suspended"),
        (job(status={"phase": "Succeeded"}), "JobFinished", "spec.ownerJob: the job digits has succeeded"),
        (job(status={"phase": "Failed"}), "JobFinished", "spec.ownerJob: the job digits has failed"),
    ],
)
def test_plans_for_jobs_that_are_gone_finished_or_suspended_fail(
    of: ElasticJob | None, reason: str, message: str
) -> None:
    found = impossible(plan(), of)
    assert found is not None and (found.reason, found.message) == (reason, message)


def test_a_plan_whose_request_does_not_fit_into_the_job_is_refused() -> None:
    resource = {f"example.com/{'x' * 250}{number}": 1 for number in range(32)}
    assert why_not(of_worker(resource=resource))[0] == "NotSupported"


def test_a_plan_whose_memory_leaves_no_room_for_checkpoints_is_refused() -> None:
    of = four(memoryCheckpoint={"size": "512Mi"})
    assert refusal(plan(**of_worker(resource={"memory": "2Gi"})), of, [], Sizes([])) is None
    assert refusal(plan(**of_worker(resource={"cpu": 2})), of, [], Sizes([])) is None
    reason, message = why_not(of_worker(resource={"memory": "512Mi"}), of)
    assert reason == "Contradiction" and "512Mi does not fit into the first container's" in message


def test_a_plan_for_more_resources_than_the_jobs_status_holds_is_refused() -> None:
    """The look that merged it would fail, as would each that follows."""
    known = {"resources": {"worker": {"limits": {f"example.com/{number}": 1 for number in range(31)}}}}
    of = job(replicas=4, template=TEMPLATE, status=known)
    assert (
        refusal(plan(**of_worker(resource={"memory": "1Gi", "example.com/0": 1})), of, [], Sizes([])) is None
    )
    found = why_not(of_worker(resource={"memory": "1Gi", "cpu": 1}), of)
    more = "with those of earlier plans, more than 32 resources"
    assert found == ("NotSupported", f"spec.replicaResourceSpecs[worker].resource: {more}")


def test_a_plan_without_a_count_comes_to_the_jobs_changed_by_its_pods() -> None:
    asked = {
        "createPods": [{}, {"type": "worker"}, {}],
        "migratePods": [{"id": 1}, {"name": "digits-worker-1"}],
    }
    request = request_of(plan(**asked), four())
    assert request.replicas == {"worker": 7} and request.moved == {"worker": [1]}
    explicit = request_of(plan(**asked, **of_worker(replicas=4)), four())
    assert explicit.replicas == {"worker": 4}


def test_amounts_are_what_the_container_asks_and_may_use() -> None:
    asked = of_worker(resource={"memory": "2Gi", "nvidia.com/gpu": 1})
    found = request_of(plan(**asked), four()).resources["worker"]
    assert found.limits == {"memory": "2Gi", "nvidia.com/gpu": 1}, (
        "the template names a limit of memory alone"
    )
    assert found.requests == {"nvidia.com/gpu": 1}
