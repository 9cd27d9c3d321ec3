"""What is said of Pods that the API server refuses, and that no template makes dlr itself stumble."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.client import Client
from controller.errors import Forbidden, Invalid, Refused, Unavailable
from crds.elasticjob import ElasticJob
from crds.job_status import JobWarning
from crds.template import POD_TEMPLATE_SCHEMA
from localcluster.builtin import components
from localcluster.schema import CompiledSchema
from reconcilers.conditions import refusal
from reconcilers.job.plan import Plan, plan_job
from reconcilers.job.seen import JobReader, Seen
from reconcilers.observed.conditions import warning_of
from reconcilers.observed.options import AgentSource, PodOptions
from reconcilers.observed.workers import Workers
from reconcilers.runtime.clock import Clock
from reconcilers.runtime.kinds import ELASTICJOBS
from reconcilers.worker.injection import inject_agent
from reconcilers.worker.job_pod import build_job_pod
from reconcilers.worker.trial import (
    MAX_WHY,
    Answer,
    PodTrial,
    Trial,
    trial_of,
    users_path,
    with_unknown_fields,
)
from tests.reconcilers.build import NOW, job, later, worker
from tests.reconcilers.caches import shaped_cache
from tests.reconcilers.check_stage import merged

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


def tried(of: ElasticJob) -> JSON:
    pod = build_job_pod(of, worker())
    inject_agent(pod, AgentSource())
    return pod


# --- fields ---------------------------------------------------------------------------------------------------


def test_a_field_is_named_as_it_is_in_the_job_though_ours_come_before_it() -> None:
    of = job(template=TEMPLATE, envs={"MINE": "x"})
    pod, path = tried(of), "spec.replicaSpecs.worker.template.spec."
    names = [entry["name"] for entry in pod["spec"]["containers"][0]["env"]]

    def of_user(field: str) -> str:
        return users_path(field, of, "worker", pod)

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
    trial = trial_of(Invalid(400, "BadRequest", said), of, "worker", tried(of))
    path = "spec.replicaSpecs.worker.template.spec."
    assert trial.answer is Answer.INVALID
    assert trial.message == (
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
    assert trial_of(invalid(field), of, "worker", tried(of)).answer is Answer.INVALID


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (invalid("spec.containers[0].name"), Answer.INVALID),
        (
            Invalid(400, "BadRequest", "Pod cannot be handled as a Pod: json: cannot unmarshal"),
            Answer.INVALID,
        ),
        (Invalid(400, "BadRequest", 'webhook "w" does not support dry run'), Answer.UNSUPPORTED),
        (Invalid(400, "BadRequest", 'admission webhook "w" denied the request: no'), Answer.FORBIDDEN),
        (
            Invalid(
                422, "Invalid", "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no"
            ),
            Answer.FORBIDDEN,
        ),
        (Refused(409, "Conflict", 'admission webhook "w" denied the request: no'), Answer.FORBIDDEN),
        (Forbidden(403, "Forbidden", 'violates PodSecurity "restricted:latest"'), Answer.FORBIDDEN),
        (Forbidden(403, "Forbidden", "exceeded quota: team"), Answer.ACCEPTED),
        (Forbidden(403, "Forbidden", 'User "u" cannot create resource "pods"'), Answer.NONE),
        (Refused(405, "MethodNotAllowed", "no"), Answer.NONE),
        (Unavailable("failed calling webhook", status=500), Answer.NONE),
    ],
)
def test_what_each_error_says_of_a_template(error: Refused | Unavailable, answer: Answer) -> None:
    trial = trial_of(error, job(), "worker", tried(job()))
    assert trial.answer is answer
    assert len(trial.message) < MAX_WHY + 80


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


@settings(max_examples=100)
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
    build_job_pod(of, avoiding)
    trial_of(invalid("spec.containers[0].env[0].name"), of, "worker", tried(of))
    plan_job(seen(of), NOW)
    plan_job(seen(of, workers=(worker(),)), NOW)


# --- the job ----------------------------------------------------------------------------------------------------

RAW = {"name": "digits", "namespace": "default", "resourceVersion": "1"}
REFUSED = Trial(Answer.INVALID, "the API server refuses the Pods of type worker: spec: no")


def seen(of: ElasticJob, trial: Trial | None = None, workers: Any = ()) -> Seen:
    return Seen(
        of, {"metadata": {"name": "digits"}, "status": of.status.to_wire()}, Workers(workers), trial=trial
    )


def after(of: ElasticJob, plan: Plan) -> ElasticJob:
    """The job when the plan is carried out."""
    status = merged({"status": of.status.to_wire()}, {"status": plan.status_patch})["status"]
    return ElasticJob.model_validate({**of.to_wire(), "status": status})


def answered(of: ElasticJob) -> JobWarning | None:
    return warning_of(of.status.warnings, refusal.PODS_NOT_ACCEPTED)


def edited(of: ElasticJob) -> ElasticJob:
    generation = of.metadata.generation + 1
    return of.model_copy(update={"metadata": of.metadata.model_copy(update={"generation": generation})})


def first_look(trial: Trial) -> tuple[ElasticJob, Plan]:
    plan = plan_job(seen(job(), trial), NOW)
    return after(job(), plan), plan


def test_a_refused_job_makes_nothing_says_so_once_and_fails_when_its_time_is_over() -> None:
    of, plan = first_look(REFUSED)
    assert not plan.acts and [event.reason for event in plan.events] == ["PodInvalid"]
    assert plan.look_again_seconds == refusal.RETRY_SECONDS
    assert not refusal.is_due(of, 1e9, False), "the template has not changed"
    again = plan_job(seen(of), later(refusal.FAIL_AFTER_SECONDS - 1))
    assert not again.acts and not again.events
    end = plan_job(seen(of), later(refusal.FAIL_AFTER_SECONDS))
    assert end.status_patch["phase"] == "Failed"
    assert end.events[0].message == (
        "no Pod could be made: the API server refuses the Pods of type worker: spec: no. Correct the job in "
        "place within 120 s; after that it fails, and has to be created again"
    )


def test_the_time_to_set_it_right_begins_anew_with_each_try() -> None:
    of, _ = first_look(REFUSED)
    of = edited(of)
    assert refusal.is_due(of, None, False)
    now = later(refusal.FAIL_AFTER_SECONDS - 1)
    again = after(of, plan_job(seen(of, REFUSED), now))
    assert refusal.seconds_to_failure(answered(again), again, now) == refusal.FAIL_AFTER_SECONDS


def test_a_suspended_job_does_not_fail_for_its_template() -> None:
    of, _ = first_look(REFUSED)
    held = of.model_copy(update={"spec": of.spec.model_copy(update={"suspend": True})})
    assert plan_job(seen(held), later(1e6)).status_patch["phase"] == "Suspended"


def test_what_a_policy_forbids_is_asked_again_now_and_then_and_no_answer_takes_nothing_back() -> None:
    of, _ = first_look(Trial(Answer.FORBIDDEN, "no"))
    assert refusal.is_due(of, None, False), "another leader does not know when it was asked"
    assert not refusal.is_due(of, refusal.RETRY_SECONDS - 1, False)
    assert refusal.is_due(of, refusal.RETRY_SECONDS, False)
    assert refusal.is_refused(refusal.judge(of, Trial(Answer.NONE, "away"), False, NOW))
    plan = plan_job(seen(of, Trial(Answer.ACCEPTED)), later(20))
    assert len(plan.acts) == 2 and not refusal.is_refused(answered(after(of, plan)))


@pytest.mark.parametrize("answer", [Answer.NONE, Answer.UNSUPPORTED])
def test_pods_that_are_there_answer_what_no_trial_has(answer: Answer) -> None:
    of, _ = first_look(Trial(answer, "away"))
    workers = [worker(index) for index in range(2)]
    made = dict.fromkeys(each.metadata.uid for each in workers)
    some = replace(seen(of, workers=workers), pods=dict.fromkeys(["w0"]))
    of = after(of, plan_job(some, NOW))
    assert answered(of) is not None
    old = replace(seen(of, workers=workers), pods=made, outdated_pods=1)
    of = after(of, plan_job(old, NOW))
    assert answered(of) is not None
    of = after(of, plan_job(replace(old, outdated_pods=0), NOW))
    assert answered(of) is None


def suspended(of: ElasticJob) -> ElasticJob:
    return of.model_copy(update={"spec": of.spec.model_copy(update={"suspend": True})})


def test_a_job_that_has_begun_or_waits_is_not_asked_about_but_rarely_until_it_is_edited() -> None:
    of = {answer: first_look(Trial(answer, "no"))[0] for answer in Answer}
    paces = {Answer.FORBIDDEN: 300.0, Answer.INVALID: 3_600.0}
    for answer, known in of.items():
        for each, has_begun in ((known, True), (suspended(known), False)):
            assert not refusal.is_due(each, None, has_begun)
            pace = paces.get(answer)
            assert not refusal.is_due(each, 1e9 if pace is None else pace - 1, has_begun)
            assert refusal.seconds_to_look(answered(each), each, has_begun) == pace
            assert pace is None or refusal.is_due(each, pace, has_begun)
            assert refusal.is_due(edited(each), 0.0, has_begun)


def test_a_refusal_is_not_final_for_a_job_that_has_begun_and_it_says_when_it_is_asked_again() -> None:
    """What a webhook makes of a Pod may be invalid today, and not tomorrow."""
    workers = [worker(index) for index in range(2)]
    of = after(job(), plan_job(seen(job(), REFUSED, workers), NOW))
    assert plan_job(seen(of, None, workers), NOW).look_again_seconds is not None
    refused = answered(of)
    assert refused is not None
    assert refused.message.endswith("but no new one can be created; tried again every 60 minutes")
    again = plan_job(seen(of, Trial(Answer.ACCEPTED), workers), later(3_600))
    assert not refusal.is_refused(answered(after(of, again)))


def test_a_suspended_job_is_told_what_is_refused_and_not_to_hurry() -> None:
    of = suspended(job())
    of = after(of, plan_job(seen(of, Trial(Answer.FORBIDDEN, "a policy says no")), NOW))
    (refused,) = of.status.warnings
    assert refused.message == (
        "a policy says no. The job is suspended, and could not begin; tried again every 5 minutes"
    )


async def test_the_time_until_the_next_trial_counts_from_the_answer() -> None:
    seconds, cache = [0.0], shaped_cache(cast(Client, None))
    clock = Clock(monotonic=lambda: seconds[0])
    view = JobReader(cast(Client, None), cache, clock, PodOptions())
    of, _ = first_look(Trial(Answer.FORBIDDEN, "no"))
    cache.store(ELASTICJOBS).apply(of.to_wire() | {"metadata": {**RAW, "uid": of.metadata.uid}})

    class Hangs:
        async def of(self, job: ElasticJob, raw: JSON) -> Trial:
            seconds[0] += 10 * refusal.RETRY_SECONDS
            return Trial(Answer.NONE)

    view._trial = cast(PodTrial, Hangs())
    assert await view._try_pods(of, {}, Workers(())) is not None
    assert await view._try_pods(of, {}, Workers(())) is None
    seconds[0] += refusal.RETRY_SECONDS
    assert await view._try_pods(of, {}, Workers(())) is not None


@pytest.mark.parametrize("answer", [Answer.UNSUPPORTED, Answer.NONE, Answer.ACCEPTED])
def test_who_is_not_refused_starts(answer: Answer) -> None:
    of, plan = first_look(Trial(answer, "why"))
    assert len(plan.acts) == 2
    warning = answered(of)
    assert (warning is None) == (answer is Answer.ACCEPTED) and not plan.events
    assert warning is None or (warning.reason, warning.message) == (answer, "why")


@given(st.sampled_from(Answer), st.sampled_from(Answer), st.booleans(), st.floats(0, 1e5), st.booleans())
def test_a_job_that_has_begun_never_fails_for_its_template(
    first: Answer, second: Answer, edited: bool, seconds: float, trains: bool
) -> None:
    workers = [worker(index) for index in range(2)] if trains else ()
    of = after(job(), plan_job(seen(job(), Trial(first, "a"), workers), NOW))
    generation = of.metadata.generation + edited
    of = of.model_copy(update={"metadata": of.metadata.model_copy(update={"generation": generation})})
    plan = plan_job(seen(of, Trial(second, "b"), workers), NOW + timedelta(seconds=seconds))
    failed = plan.status_patch.get("phase") == "Failed"
    assert not (failed and trains)
    if failed:
        assert refusal.is_refused(answered(after(of, plan))) and seconds >= refusal.FAIL_AFTER_SECONDS
