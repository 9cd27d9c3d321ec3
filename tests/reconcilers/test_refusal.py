"""What is said of Pods that the API server refuses, and that no template makes dlr itself stumble."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import (
    ApiError,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    Refused,
    Unavailable,
    error_of_status,
)
from controller.resources import PODS, Resource
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker, WorkerPhase
from crds.job_status import JobWarning
from crds.phases import JobPhase
from crds.template import POD_TEMPLATE_SCHEMA
from localcluster.builtin import components
from localcluster.schema import CompiledSchema
from reconcilers.failure import refusal
from reconcilers.job.plan import JobPlan, plan_job
from reconcilers.nodecheck.pod import CheckAssignment
from reconcilers.observed.conditions import condition_of, warning_of
from reconcilers.observed.options import AgentSource
from reconcilers.observed.ownership import name_taken
from reconcilers.observed.worker_state import POD_FORBIDDEN, POD_INVALID, POD_REFUSED, SCHEDULED
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.worker.assignment import JobAssignment
from reconcilers.worker.injection import inject_agent
from reconcilers.worker.pod_refusal import (
    MAX_WHY,
    PodRefused,
    PodSource,
    refused_pod,
    users_path,
    with_unknown_fields,
)
from tests.reconcilers.api import Api
from tests.reconcilers.build import NOW, check, check_worker, job, later, worker
from tests.reconcilers.cluster_model import Script, add_nodes
from tests.reconcilers.judging import after, seen_of
from tests.reconcilers.life import JOB, Run, submit

JSON = dict[str, Any]
TEMPLATE: JSON = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": []},
    "spec": {
        "initContainers": [{"name": "first", "image": "x", "env": [{"name": "A", "value": "1"}]}],
        "containers": [
            {
                "name": "main",
                "image": "x",
                "command": ["torchrun"],
                "args": ["train.py"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}],
                "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": 0.5}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "securityContext": {"runAsUser": 1},
            }
        ],
        "volumes": [{"name": "data"}],
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"gpu": "a"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [], "matchFields": []}]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [],
            }
        },
        "serviceAccountName": "mine",
        "terminationGracePeriodSeconds": 5,
    },
}


def invalid(*fields: str) -> Invalid:
    causes = [{"field": field, "message": "Invalid value: wrong"} for field in fields]
    return Invalid(422, "Invalid", "Pod is invalid", {"causes": causes})


def tried(of: ElasticJob) -> tuple[PodSource, JSON]:
    assignment = JobAssignment(worker(), {}, of)
    pod = assignment.build_pod()
    inject_agent(pod, AgentSource())
    return assignment.source, pod


def refused(error: ApiError, of: ElasticJob) -> PodRefused:
    found = refused_pod(error, *tried(of))
    assert found is not None
    return found


# --- fields ---------------------------------------------------------------------------------------------------


def test_a_field_is_named_as_it_is_in_the_job_though_ours_come_before_it() -> None:
    of = job(template=TEMPLATE, envs={"MINE": "x"})
    (source, pod), path = tried(of), "spec.replicaSpecs.worker.template.spec."
    names = [entry["name"] for entry in pod["spec"]["containers"][0]["env"]]

    def of_user(field: str) -> str:
        return users_path(field, source, pod)

    assert of_user("spec.initContainers[1].image") == path + "initContainers[0].image"
    assert of_user("spec.initContainers[0].image") == "the Pod's spec.initContainers[0].image, which dlr adds"
    assert of_user("spec.volumes[0].name") == path + "volumes[0].name"
    assert of_user("metadata.labels") == "spec.replicaSpecs.worker.template.metadata.labels"
    place = names.index("B")
    assert of_user(f"spec.containers[0].env[{place}].valueFrom") == path + "containers[0].env[1].valueFrom"
    place = names.index("MINE")
    assert of_user(f"spec.containers[0].env[{place}].value") == "spec.envs.MINE.value"
    assert "which dlr adds" in of_user("spec.containers[0].env[0].value")


def test_unknown_fields_are_named_as_they_are_in_the_job() -> None:
    of = job(template=TEMPLATE)
    said = (
        'Pod in version "v1" cannot be handled as a Pod: strict decoding error: '
        'unknown field "spec.containers[0].comand", unknown field "spec.initContainers[1].imagee"'
    )
    found = refused(Invalid(400, "BadRequest", said), of)
    path = "spec.replicaSpecs.worker.template.spec."
    assert found.reason == POD_INVALID
    assert str(found) == (
        "the API server refuses the Pods of type worker: "
        f"{path}containers[0].comand: unknown field; is it misspelt?; "
        f"{path}initContainers[0].imagee: unknown field; is it misspelt?"
    )


def test_what_dlr_leaves_out_of_pods_is_tried_with_them_unless_pods_have_it() -> None:
    known = {"name": "x", "resourceVersion": "1", "creationTimestamp": None, "labels": {"a": "b"}}
    template = {**TEMPLATE, "metadata": {**known, "lables": {}}, "kind": "Pod", "sepc": {}}
    pod = {"kind": "Pod", "metadata": {"name": "ours"}, "spec": {}}
    tried_pod = with_unknown_fields(pod, template)
    assert tried_pod == {**pod, "metadata": {"name": "ours", "lables": {}}, "sepc": {}}
    assert with_unknown_fields(pod, {"spec": {}, "metadata": None}) == pod


@given(st.from_regex(r"spec\.(initContainers|containers)\[\d{1,2}\](\.env\[\d{1,2}\])?\.\w*", fullmatch=True))
def test_no_field_that_an_api_server_names_is_too_odd(field: str) -> None:
    of = job(template=TEMPLATE)
    assert refused(invalid(field), of).reason == POD_INVALID


def test_a_field_of_a_check_is_named_as_it_is_in_the_check() -> None:
    """And where the check has no template, all of its Pod is dlr's."""
    own = check(template={"spec": {"containers": [{"name": "Main_1", "image": "x"}]}})
    for of, where in ((own, "spec.template.spec.containers[0].name"), (check(), "which dlr adds")):
        assignment = CheckAssignment(check_worker(), {}, of, None, "image")
        found = refused_pod(invalid("spec.containers[0].name"), assignment.source, assignment.build_pod())
        assert found is not None and where in str(found)


def test_a_priority_class_for_growth_that_is_not_there_is_named_by_its_field() -> None:
    status = {"scaling": {"replicas": 1, "by": "spec", "at": "2026-01-01T12:00:00Z", "base": 0}}
    growth = {"opportunistic": {"priorityClassName": "idle"}}
    error = Forbidden(403, "Forbidden", "pods is forbidden: no PriorityClass with name idle was found")
    found = refused(error, job(worker={"maxReplicas": 4}, elasticPolicy=growth, status=status))
    path = "spec.elasticPolicy.opportunistic.priorityClassName"
    assert (found.reason, str(found)) == (POD_FORBIDDEN, f"{path}: there is no PriorityClass idle; create it")
    assert "refuses the Pods of type worker" in str(refused(error, job()))


TAKEN = name_taken(
    {"kind": "Pod", "metadata": {"name": "p", "ownerReferences": [{"kind": "ElasticWorker", "name": "w"}]}}
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (invalid("spec.containers[0].name"), POD_INVALID),
        (Invalid(400, "BadRequest", "Pod cannot be handled as a Pod: json: cannot unmarshal"), POD_INVALID),
        (Invalid(400, "BadRequest", 'admission webhook "w" denied the request: no'), POD_FORBIDDEN),
        (
            Invalid(
                422, "Invalid", "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no"
            ),
            POD_FORBIDDEN,
        ),
        (Refused(409, "Conflict", 'admission webhook "w" denied the request: no'), POD_FORBIDDEN),
        (Forbidden(403, "Forbidden", 'violates PodSecurity "restricted:latest"'), POD_FORBIDDEN),
        (Forbidden(403, "Forbidden", "exceeded quota: team"), POD_REFUSED),
        (Forbidden(403, "Forbidden", 'pods "x" is forbidden: not yet ready to handle request'), POD_REFUSED),
        (Forbidden(403, "Forbidden", "policy 'q' denied request: exceeded quota: team"), POD_REFUSED),
        (TAKEN, POD_REFUSED),
        (error_of_status({"message": "Internal error: failed calling webhook"}, 500), POD_REFUSED),
        (Unavailable("no leader", status=500), None),
        (error_of_status({"message": "etcdserver: request is too large"}, 500), POD_INVALID),
        (NamespaceTerminating(403, "Forbidden", "it is being terminated"), None),
    ],
)
def test_what_each_error_says_of_a_template(error: ApiError, reason: str | None) -> None:
    found = refused_pod(error, *tried(job()))
    assert (None if found is None else found.reason) == reason
    assert len(str(found)) < MAX_WHY + 80


# --- no template makes dlr itself stumble -----------------------------------------------------------------------


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [at] * bool(at) + [path for key in keys for path in paths(value[key], (*at, key))]


SCHEMA = CompiledSchema(POD_TEMPLATE_SCHEMA, components(), custom=True)
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 9)
    | st.floats(0, 1)
    | st.sampled_from(["", "x", "name", "lots"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "env", "x"]), inner),
    max_leaves=4,
)


@given(st.sampled_from(paths(TEMPLATE)), ODD)
def test_a_template_is_refused_for_its_shape_or_makes_a_pod(path: tuple[Any, ...], odd: Any) -> None:
    template = copy.deepcopy(TEMPLATE)
    place: Any = template
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = odd
    if SCHEMA.validate(template):
        return  # by the API server
    of = job(template=template)
    avoiding = worker(excludedNodes=["a"], faultyNodes=["b"])
    JobAssignment(avoiding, {}, of).build_pod()
    source, pod = tried(of)
    with_unknown_fields(pod, source.template)
    refused_pod(invalid("spec.containers[0].env[0].name"), source, pod)
    plan_job(seen_of(of), NOW)
    plan_job(seen_of(of, workers=(worker(),)), NOW)


# --- the job ----------------------------------------------------------------------------------------------------

WHY = "the API server refuses the Pods of type worker: spec: no"


def without_pod(index: int = 0, reason: str = POD_INVALID, message: str = WHY, **more: Any) -> ElasticWorker:
    """A worker whose Pod was refused."""
    condition = {"type": SCHEDULED, "status": "False", "reason": reason, "message": message}
    conditions = [condition | {"lastTransitionTime": "2026-01-01T12:00:00Z"}]
    return worker(
        index, WorkerPhase.PENDING, podUid=None, podName=None, nodeName=None, conditions=conditions, **more
    )


def answered(of: ElasticJob) -> JobWarning | None:
    return warning_of(of.status.warnings, refusal.PODS_NOT_ACCEPTED)


def edited(of: ElasticJob) -> ElasticJob:
    generation = of.metadata.generation + 1
    return of.model_copy(update={"metadata": of.metadata.model_copy(update={"generation": generation})})


def first_look(*workers: ElasticWorker) -> tuple[ElasticJob, JobPlan]:
    of = job(replicas=max(2, len(workers)))
    plan = plan_job(seen_of(of, workers), NOW)
    return after(of, plan), plan


def test_the_first_pod_that_is_refused_stops_the_making_is_told_once_and_fails_the_job_in_its_time() -> None:
    of, plan = first_look(without_pod())
    assert not plan.acts, "no further worker is made"
    assert [event.reason for event in plan.events] == ["PodInvalid"]
    assert [warning.type for warning in of.status.warnings] == ["PodsNotAccepted"]
    assert plan.look_again_seconds is not None and plan.look_again_seconds <= refusal.FAIL_AFTER_SECONDS
    again = plan_job(seen_of(of, [without_pod()]), later(refusal.FAIL_AFTER_SECONDS - 1))
    assert not again.acts and not again.events
    end = plan_job(seen_of(of, [without_pod()]), later(refusal.FAIL_AFTER_SECONDS))
    assert end.status_patch["phase"] == "Failed"
    failed = f"no Pod could be made: {WHY}. Correct that, delete the job and create it again"
    assert [event.message for event in end.events if event.type == "Warning"] == [failed]
    condition = condition_of(after(of, end).status.conditions, "Failed")
    assert condition is not None and condition.message == failed
    assert [each["message"] for each in end.status_patch["warnings"]] == [WHY], "it stands without advice"


def test_an_invalid_pod_is_told_before_one_that_is_forbidden_and_those_without_a_node() -> None:
    crew = [without_pod(0, "Unschedulable"), without_pod(1, POD_FORBIDDEN), without_pod(2, POD_INVALID)]
    of, _ = first_look(*crew)
    told = [(warning.type, warning.reason) for warning in of.status.warnings]
    assert told == [("PodsNotAccepted", POD_INVALID), ("WorkersUnscheduled", "Unschedulable")]
    assert of.status.warnings[1].message.startswith("1 Pod cannot be scheduled")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (
            {"resources": {"limits": {"cpu": "lots"}}},
            "containers[0].resources.limits.cpu: 'lots' is no quantity",
        ),
        ({"resources": {"requests": {"memory": "12Q"}}}, "resources.requests.memory: '12Q' is no quantity"),
    ],
)
def test_what_dlr_can_judge_itself_is_told_before_any_worker_is_made(changed: JSON, sentence: str) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x"} | changed]}}
    of = job(template=template)
    plan = plan_job(seen_of(of), NOW)
    assert not plan.acts and sentence in plan.status_patch["warnings"][0]["message"]
    trains = [worker(index) for index in range(2)]
    goes_on = answered(after(of, plan_job(seen_of(edited(of), trains), NOW)))
    assert goes_on is not None and "The Pods that exist go on" in goes_on.message


def test_a_pod_that_is_taken_ends_the_refusal_and_the_other_workers_are_made() -> None:
    of, _ = first_look(without_pod())
    plan = plan_job(seen_of(of, [worker()]), later(20))
    assert len(plan.acts) == 1 and answered(after(of, plan)) is None


def test_a_quota_that_is_used_up_is_no_fault_of_the_template_and_fails_nobody() -> None:
    """Bug 47."""
    why = "Pod digits-worker-0-1 was refused: exceeded quota: team"
    of, plan = first_look(without_pod(reason=POD_REFUSED, message=why))
    assert len(plan.acts) == 1, "the other worker is made"
    assert [(each.type, each.reason) for each in of.status.warnings] == [("WorkersUnscheduled", POD_REFUSED)]
    assert why in of.status.warnings[0].message
    late = plan_job(seen_of(of, [without_pod(reason=POD_REFUSED, message=why)]), later(1e4))
    assert late.status_patch.get("phase") != "Failed"


def test_a_suspended_job_does_not_fail_for_its_template() -> None:
    of, _ = first_look(without_pod())
    held = of.model_copy(update={"spec": of.spec.model_copy(update={"suspend": True})})
    assert plan_job(seen_of(held, [without_pod()]), later(1e6)).status_patch["phase"] == "Suspended"


def test_a_type_that_is_added_to_a_job_that_trains_does_not_fail_it() -> None:
    """Nor does a slot whose next Pod is refused; but a type of which no Pod was ever made does."""
    of, _ = first_look(without_pod())
    trains = of.model_copy(update={"status": of.status.model_copy(update={"phase": JobPhase.RUNNING})})
    for each, crew in ((trains, [without_pod()]), (of, [worker(1), without_pod()])):
        assert plan_job(seen_of(each, crew), later(1e4)).status_patch.get("phase") != "Failed"


@given(
    st.sampled_from((POD_INVALID, POD_FORBIDDEN, POD_REFUSED)),
    st.booleans(),
    st.floats(0, 1e5),
    st.booleans(),
)
def test_a_job_that_has_begun_never_fails_for_its_template(
    reason: str, is_edited: bool, seconds: float, trains: bool
) -> None:
    crew = [without_pod(0, reason), *([worker(1)] if trains else ())]
    of, _ = first_look(*crew)
    of = edited(of) if is_edited else of
    plan = plan_job(seen_of(of, crew), NOW + timedelta(seconds=seconds))
    failed = plan.status_patch.get("phase") == "Failed"
    assert failed == (
        not trains and reason != POD_REFUSED and not is_edited and seconds >= refusal.FAIL_AFTER_SECONDS
    )


class Counted(Api):
    """An API server with a quota of three Pods, those that have ended too."""

    def _create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        if resource is PODS and len(self.list(PODS)) >= 3:
            why = "exceeded quota: q, requested: count/pods=1, used: count/pods=3, limited: count/pods=3"
            raise Forbidden(403, "Forbidden", f'pods "x" is forbidden: {why}')
        return super()._create(resource, body)


async def test_a_pod_that_has_ended_gives_way_where_a_quota_counts_it() -> None:
    api = Counted()
    add_nodes(api, 6)
    submit(api)
    for incarnation in (0, 1, 2):
        run = Run(api, Script(pod_failures={(1, incarnation): {"exitCode": 1, "reason": "Error"}}))
        await run.settle()
        assert run.errors == []
    assert sorted(each["metadata"]["name"] for each in api.list(PODS)) == [
        "j-worker-0-1",
        "j-worker-1-3",
        "j-worker-2-1",
    ]
    assert api.get(ELASTICJOBS, JOB)["status"]["rendezvous"]["members"] == "0-2"
