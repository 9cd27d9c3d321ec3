"""A slot that ran out of memory gets more: how much, and where it ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import ApiError, Forbidden, Invalid
from controller.resources import PODS, Resource
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, ExitClass, WorkerExit, WorkerPhase
from crds.model import ResourceRequirements
from reconcilers.failure.memory import (
    MOST_A_STEP_BYTES,
    ContainerMemory,
    MemoryRoom,
    raised,
    refused_with_more,
)
from reconcilers.observed.builder import REQUIRED
from reconcilers.observed.resources import whole
from reconcilers.observed.worker_state import POD_REFUSED, SCHEDULED
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.reconcilers.api import Api
from tests.reconcilers.build import NOW, job, worker
from tests.reconcilers.cluster_model import Script, add_nodes
from tests.reconcilers.life import JOB, Run, submit

GI = 2**30
GPU = "nvidia.com/gpu"


def node(memory: str) -> dict[str, Any]:
    return {"status": {"allocatable": {"cpu": "8", "memory": memory}}}


LARGE = [node("64Gi"), node("256Gi")]


def needing(limits: Any = None, requests: Any = None, beside: Any = None, **spec: Any) -> ElasticJob:
    given_ = {"limits": limits, "requests": requests}
    resources = {kind: values for kind, values in given_.items() if values}
    containers = [{"name": "main", "image": "x", "resources": resources}]
    if beside:
        containers.append({"name": "log", "image": "x", "resources": beside})
    return job(template={"spec": {"containers": containers}}, **spec)


def killed(
    index: int = 0,
    exit_class: ExitClass = ExitClass.OOM,
    own: dict[str, Any] | None = None,
    phase: WorkerPhase = WorkerPhase.FAILED,
    **status: Any,
) -> ElasticWorker:
    end = WorkerExit(incarnation=1, exit_class=exit_class, time=NOW)
    made = worker(index, phase, **({"lastExit": end.to_wire()} | status))
    resources = None if own is None else ResourceRequirements.model_validate(own)
    return made.model_copy(update={"spec": made.spec.model_copy(update={"resources": resources})})


def raise_(owner: ElasticJob, failed: ElasticWorker, *others: ElasticWorker, nodes: Any = LARGE) -> Any:
    found = MemoryRoom(owner, [failed, *others], nodes).changed_memory(failed)
    return None if found is None else found.resources.to_wire()


def test_memory_doubles() -> None:
    owner = needing({"memory": "2Gi", "cpu": "4"})
    found = MemoryRoom(owner, [killed()], LARGE).changed_memory(killed())
    assert found is not None
    assert found.resources.to_wire() == {"limits": {"memory": "4Gi"}, "requests": {}}
    assert found.message == "digits-worker-0 ran out of memory with 2Gi: its next Pod gets 4Gi"


def test_an_init_container_out_of_memory_raises_nothing_of_the_training_containers() -> None:
    end = WorkerExit(incarnation=1, exit_class=ExitClass.OOM, container="fetch", time=NOW)
    assert raise_(needing({"memory": "2Gi"}), killed(lastExit=end.to_wire())) is None


@pytest.mark.parametrize(
    ("limit", "request_", "limit_after", "request_after"),
    [
        ("2Gi", "2Gi", "4Gi", "4Gi"),
        ("1500M", "1G", "3G", "2G"),
        (None, "2Gi", None, "4Gi"),
        ("1Gi", 1000, "2Gi", "2k"),
    ],
)
def test_limit_and_request_grow_in_proportion(
    limit: Any, request_: Any, limit_after: Any, request_after: Any
) -> None:
    owner = needing(limit and {"memory": limit}, {"memory": request_})
    expected = {"limits": {"memory": limit_after} if limit else {}, "requests": {"memory": request_after}}
    assert raise_(owner, killed()) == expected


def test_largest_node_is_the_cap() -> None:
    owner = needing({"memory": "6Gi"}, {"memory": "3Gi"})
    nodes = [node("4Gi"), node("9600Mi"), {"status": {}}, {}]
    assert raise_(owner, killed(), nodes=nodes) == {
        "limits": {"memory": "9000Mi"},
        "requests": {"memory": "4500Mi"},
    }, "a sixteenth is left to Pods that each node has"
    assert raise_(needing({"memory": "120Gi"}), killed(), nodes=[node("128Gi")])["limits"] == {
        "memory": "126Gi"
    }, "of a large node, 2 GiB"
    assert raise_(needing({"memory": "9Gi"}), killed(), nodes=nodes) is None
    assert raise_(needing({"memory": "20Gi"}), killed(), nodes=nodes) is None
    assert raise_(owner, killed(), nodes=[]) is None


def test_other_containers_of_the_pod_need_room_too() -> None:
    owner = needing({"memory": "6Gi"}, beside={"limits": {"memory": "4Gi"}, "requests": {"memory": "1Gi"}})
    assert raise_(owner, killed(), nodes=[node("9600Mi")])["limits"] == {"memory": "7976Mi"}
    sidecar = {
        "name": "log",
        "image": "x",
        "restartPolicy": "Always",
        "resources": {"limits": {"memory": "1Gi"}},
    }
    owner.spec.replica_specs["worker"].template["spec"]["initContainers"] = [sidecar]
    assert raise_(owner, killed(), nodes=[node("9600Mi")])["limits"] == {"memory": "6952Mi"}


def test_only_nodes_that_may_take_the_pod_are_a_cap() -> None:
    """On a larger one it would wait for ever, where the error of the process is told by now."""
    owner = needing({"memory": "24Gi", GPU: "8"}, {"cpu": "6"})
    gpus = {"metadata": {"name": "gpu"}, "status": {"allocatable": {"cpu": "8", "memory": "34Gi", GPU: "8"}}}
    few = {"metadata": {"name": "few"}, "status": {"allocatable": {"cpu": "8", "memory": "99Gi", GPU: "4"}}}
    assert raise_(owner, killed(), nodes=[*LARGE, gpus, few])["limits"]["memory"] == "32Gi"
    assert raise_(needing({"memory": "32Gi", GPU: "8"}), killed(), nodes=[*LARGE, gpus, few]) is None
    tainted = LARGE[1] | {
        "metadata": {"name": "t"},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    }
    most = needing({"memory": "61Gi"})
    assert raise_(most, killed(), nodes=[LARGE[0], tainted])["limits"] == {"memory": "62Gi"}
    there = killed(nodeName="t")
    assert raise_(most, there, nodes=[LARGE[0], tainted])["limits"] == {"memory": "69Gi"}, "it has been there"
    spec = most.spec.replica_specs["worker"].template["spec"]
    spec["tolerations"] = [{"key": "a", "operator": "Exists"}]
    assert raise_(most, killed(), nodes=[LARGE[0], tainted])["limits"] == {"memory": "69Gi"}
    for asked in (
        {"nodeSelector": {"zone": "a"}},
        {"affinity": {"nodeAffinity": {REQUIRED: {"some": "terms"}}}},
    ):
        spec |= asked
        assert raise_(most, killed(nodeName="t"), nodes=[LARGE[0], tainted])["limits"] == {"memory": "69Gi"}
        assert raise_(most, killed(nodeName="n"), nodes=[LARGE[0] | {"metadata": {"name": "n"}}, tainted])[
            "limits"
        ] == {"memory": "62Gi"}
        spec.pop(next(iter(asked)))
    nowhere = needing({"memory": "24Gi", GPU: "16"})
    assert raise_(nowhere, killed(), nodes=[gpus]) is not None, "where none is known, all count"


def test_limit_of_the_job_is_for_all_its_pods() -> None:
    owner = needing({"memory": "4Gi"}, replicas=3, resourceLimits={"memory": "14Gi"})
    others = [worker(1), worker(2)]
    assert raise_(owner, killed(), *others)["limits"] == {"memory": "6Gi"}
    larger = killed(2, own={"limits": {"memory": "6Gi"}})
    assert raise_(owner, killed(), worker(1), larger) is None
    assert raise_(needing({"memory": "4Gi"}, resourceLimits={"cpu": "9"}), killed()) is not None


@pytest.mark.parametrize("limits", [None, {"cpu": "1"}, {"memory": "much"}, {"memory": 0}])
def test_without_any_amount_there_is_nothing_to_raise(limits: Any) -> None:
    assert raise_(needing(limits), killed()) is None


@pytest.mark.parametrize(
    "other",
    [
        killed(exit_class=ExitClass.USER_ERROR),
        killed(phase=WorkerPhase.RUNNING),
        killed(lastExit=None),
        killed(observedIncarnation=2),
        killed(lastExit=WorkerExit(incarnation=2, exit_class=ExitClass.OOM, time=NOW).to_wire()),
        worker(0, None),
    ],
)
def test_only_a_pod_that_has_just_run_out_of_memory_gets_more(other: ElasticWorker) -> None:
    assert raise_(needing({"memory": "4Gi"}), other) is None


amounts = st.integers(1, 2**50)


@given(limit=amounts, share=st.fractions(0, 1), room=st.integers(-(2**40), 2**51))
def test_step_is_bounded_and_keeps_the_proportion(limit: int, share: Any, room: int) -> None:
    request = max(int(limit * share), 1)
    after = raised(ContainerMemory(limit, request), room)
    if after is None:
        assert room <= limit
        return
    assert after.limit is not None and after.request is not None
    assert limit < after.limit <= min(2 * limit, limit + MOST_A_STEP_BYTES, room)
    assert request <= after.request <= after.limit
    assert 0 <= after.request * limit - request * after.limit < limit


@given(start=st.integers(1, 600 * GI), room=st.integers(1, 600 * GI))
def test_steps_end_at_the_cap_exactly(start: int, room: int) -> None:
    memory, steps = ContainerMemory(start, start), 0
    while (after := raised(memory, room)) is not None:
        memory, steps = after, steps + 1
    assert memory.most == max(start, room)
    assert memory.limit == memory.request
    assert steps <= 40 + room // MOST_A_STEP_BYTES


QUOTA = 'pods "memory" is forbidden: exceeded quota: memory, requested: '
LIMIT_RANGE = 'pods "memory" is forbidden: '
DENIED = 'admission webhook "memory" denied the request: '


def taken_back(why: str, before: int | None) -> Any:
    """The limits after a refusal of a slot's Pod with 4 GiB, of a job with 1 GiB."""
    stuck = {"type": SCHEDULED, "status": "False", "reason": POD_REFUSED, "lastTransitionTime": NOW}
    of = killed(
        own={"limits": {"memory": "4Gi"}}, phase=WorkerPhase.PENDING, conditions=[stuck | {"message": why}]
    )
    of = of.model_copy(
        update={"spec": of.spec.model_copy(update={"incarnation": 2, "memory_before": before})}
    )
    found = refused_with_more(needing({"memory": "1Gi"}), of)
    return None if found is None else found.resources.to_wire()["limits"]


@pytest.mark.parametrize(
    ("why", "is_for_memory"),
    [
        (QUOTA + "limits.memory=4Gi, used: limits.memory=2Gi, limited: limits.memory=5Gi", True),
        (QUOTA + "limits.cpu=4,requests.memory=4Gi, used: limits.cpu=2", True),
        (QUOTA + "requests.nvidia.com/gpu=1, used: requests.memory=8,requests.nvidia.com/gpu=8", False),
        ("status unknown for quota: q, resources: limits.memory, requests.memory", False),
        (
            LIMIT_RANGE
            + "[maximum cpu usage per Pod is 1, but limit is 2, maximum memory usage per Pod is 3Gi]",
            True,
        ),
        (
            LIMIT_RANGE + "memory max limit to request ratio per Container is 2, but provided ratio is 4.0",
            True,
        ),
        (LIMIT_RANGE + "maximum cpu usage per Container is 1, but limit is 2", False),
        (LIMIT_RANGE + 'error looking up service account n/x: serviceaccount "memory" not found', False),
        (LIMIT_RANGE + 'violates PodSecurity "restricted:latest": memory runAsNonRoot != true', False),
        ('failed calling webhook "memory": connection refused', False),
        (DENIED + "container <main> memory limit <4Gi> is higher than the maximum allowed of <3Gi>", True),
        (DENIED + "the label team is missing", False),
        (
            "t.spec.resources.requests[memory]: must be greater than or equal to aggregate container requests",
            True,
        ),
        ("t.spec.containers[0].resources.requests: must be less than or equal to memory limit of 1Gi", True),
        (
            "t.spec.containers[0].resources.limits: must be a multiple of 1; t.spec.volumes[0].memory: is odd",
            False,
        ),
    ],
)
def test_memory_is_taken_back_only_where_the_pod_is_refused_for_it(why: str, is_for_memory: bool) -> None:
    assert taken_back(why, 2 * GI) == ({"memory": "2Gi"} if is_for_memory else None)
    assert taken_back(why, None) is None, "it has what the last Pod had"


class Limited(Api):
    """An API server that takes no Pod whose training container has more."""

    why: ApiError
    most = 3 * GI
    until = float("inf")

    def _create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        if resource is PODS:
            amount = body["spec"]["containers"][0]["resources"]["limits"]["memory"]
            if whole(amount) > self.most and self.seconds < self.until:
                raise self.why
        return super()._create(resource, body)


@pytest.mark.parametrize(
    "why",
    [
        Forbidden(
            403, "Forbidden", 'pods "x" is forbidden: maximum memory usage per Pod is 3Gi, but limit is 4Gi'
        ),
        Forbidden(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q, requested: limits.memory=4Gi'),
        Invalid(
            422,
            "Invalid",
            "spec.containers[0][memory].limits: must be less than or equal to pod limits of 3Gi",
        ),
    ],
)
async def test_a_pod_that_is_refused_with_more_memory_comes_with_what_the_last_one_had(why: ApiError) -> None:
    api = Limited()
    api.why = why
    add_nodes(api, 6)
    submit(api)
    for incarnation in (0, 1, 2, 4):  # the third Pod is refused, and the fourth runs out of memory, too
        failures = {(0, incarnation): {"exitCode": 137, "reason": "OOMKilled"}}
        run = Run(api, Script(pod_failures=failures))
        await run.settle()
        assert run.errors == []
        status = api.get(ELASTICJOBS, JOB)["status"]
        assert (status["phase"], status["rendezvous"]["members"], status["warnings"]) == (
            "Running",
            "0-2",
            [],
        )
    pods = {
        each["metadata"]["name"]: each["spec"]["containers"][0]["resources"]["limits"]["memory"]
        for each in api.list(PODS)
        if each["status"]["phase"] == "Running"
    }
    assert pods == {"j-worker-0-6": "2Gi", "j-worker-1-1": "1Gi", "j-worker-2-1": "1Gi"}
    told = [event.message for event in api.events if event.reason == "MemoryNotRaised"]
    assert (
        len(told) == 2 and told[0].startswith("j-worker-0 gets 2Gi of memory again: ") and str(why) in told[0]
    )
    assert not any(event.reason in ("PodForbidden", "PodInvalid") for event in api.events), (
        "the template is well"
    )


async def test_a_pod_that_has_no_more_than_the_last_one_keeps_its_memory_when_it_is_refused() -> None:
    api = Limited()
    api.why = Forbidden(403, "Forbidden", "maximum memory usage per Container is 1Gi, but limit is 2Gi")
    add_nodes(api, 6)
    submit(api, resourceLimits={"memory": "4Gi"})
    for incarnation, most, before in ((0, 2 * GI, None), (1, GI, GI), (2, GI, None)):
        failures = {(0, incarnation): {"exitCode": 137, "reason": "OOMKilled"}}
        await Run(api, Script(pod_failures=failures)).settle()
        spec, api.most = api.get(ELASTICWORKERS, "j-worker-0")["spec"], most
        assert (spec["incarnation"], spec.get("memoryBefore")) == (incarnation + 1, before)
    assert spec["resources"]["limits"] == {"memory": "2Gi"}


async def test_a_quota_that_counts_the_ended_pod_for_a_moment_takes_no_memory_back() -> None:
    api = Limited()
    api.why, api.most = Forbidden(403, "Forbidden", QUOTA + "limits.memory=2Gi, used: limits.memory=3Gi"), GI
    add_nodes(api, 6)
    submit(api)
    await Run(api).settle()
    api.until = api.seconds + 10
    await Run(api, Script(pod_failures={(0, 1): {"exitCode": 137, "reason": "OOMKilled"}})).settle()
    spec = api.get(ELASTICWORKERS, "j-worker-0")["spec"]
    assert (spec["incarnation"], spec["resources"]["limits"]) == (2, {"memory": "2Gi"})
    assert api.get(ELASTICJOBS, JOB)["status"]["rendezvous"]["members"] == "0-2"
