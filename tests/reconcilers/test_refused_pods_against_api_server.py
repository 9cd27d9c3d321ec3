"""Jobs whose Pods can never start, on the real API server: the sentence that says so, and that it comes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from controller.client import Client
from controller.errors import AlreadyExists, Forbidden, Invalid, Unavailable
from controller.resources import EVENTS
from crds.elasticjob import ElasticJob
from reconcilers.conditions import refusal
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.worker.trial import PodTrial, Trial
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected, controllers
from tests.reconcilers.test_node_check_against_api_server import BINDINGS, refuse_workers

pytestmark = pytest.mark.real

Template = dict[str, Any]


def template(container: Template | None = None, spec: Template | None = None, **more: Any) -> Template:
    main = {"name": "main", "image": "x"} | (container or {})
    return {"spec": {"containers": [main]} | (spec or {})} | more


def on_the_job(wanted: str, **broken: Any) -> Any:
    """Refused for the job's Pods; `wanted` is the sentence's field and what is wrong with it."""
    path = "spec.replicaSpecs.worker.template."
    return pytest.param(template(**broken), wanted.replace("TEMPLATE.", path), id=wanted)


REFUSED_PODS = [
    on_the_job(
        "TEMPLATE.spec.containers[0].resources.limits.cpu: 'lots' is no quantity",
        container={"resources": {"limits": {"cpu": "lots"}}},
    ),
    on_the_job("TEMPLATE.spec.containers[0].comand: unknown field", container={"comand": ["sleep", "1"]}),
    on_the_job("TEMPLATE.spec.hostNetwerk: unknown field", spec={"hostNetwerk": True}),
    on_the_job("TEMPLATE.metadata.lables: unknown field", metadata={"lables": {"a": "b"}}),
    on_the_job("TEMPLATE.sepc: unknown field", sepc={"hostNetwork": True}),
    on_the_job(
        "TEMPLATE.spec.containers[0].env[0].valueFrom.secretRef: unknown field",
        container={"env": [{"name": "A", "valueFrom": {"secretRef": {"name": "s"}}}]},
    ),
    on_the_job("TEMPLATE.spec.containers[0].name: Invalid value", container={"name": "Main_1"}),
    on_the_job(
        "TEMPLATE.spec.containers[0].volumeMounts[0].name: Not found",
        container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    ),
    on_the_job(
        "TEMPLATE.spec.initContainers[0].name", spec={"initContainers": [{"name": "A B", "image": "x"}]}
    ),
    on_the_job(
        "TEMPLATE.spec.initContainers[0].name: Duplicate",
        spec={"initContainers": [{"name": "main", "image": "x"}]},
    ),
    on_the_job("TEMPLATE.spec.volumes[1].name: Duplicate", spec={"volumes": [{"name": "a"}, {"name": "a"}]}),
    on_the_job("TEMPLATE.spec.restartPolicy", spec={"restartPolicy": "Sometimes"}),
    on_the_job("TEMPLATE.spec.containers[0].imagePullPolicy", container={"imagePullPolicy": "Maybe"}),
    on_the_job("TEMPLATE.metadata.labels", metadata={"labels": {"a": "b c"}}),
    on_the_job("no PriorityClass with name urgent", spec={"priorityClassName": "urgent"}),
    on_the_job('serviceaccount "mine" not found', spec={"serviceAccountName": "mine"}),
    on_the_job(
        "containers[0].ports[0].protocol", container={"ports": [{"containerPort": 1, "protocol": "x"}]}
    ),
]


@pytest.mark.parametrize(("broken", "wanted"), REFUSED_PODS)
async def test_a_refused_template_is_told_on_the_job_at_once_and_nothing_is_made(
    hollow: Hollow, broken: Template, wanted: str
) -> None:
    """The first status that the job has says so."""
    name = f"broken-{[pair.values[0] for pair in REFUSED_PODS].index(broken)}"
    await hollow.submit(name, worker={"template": broken})

    async def status() -> dict[str, Any]:
        return await hollow.status(name)

    first = await hollow.until("the first status", status)
    message = next(w for w in first["warnings"] if w["type"] == refusal.PODS_NOT_ACCEPTED)["message"]
    assert wanted in message
    assert "the API server refuses the Pods of type worker: " in message
    assert f"within {refusal.FAIL_AFTER_SECONDS:g} s; after that it fails" in message
    assert not await hollow.pods(name)
    workers = await hollow.client.list(ELASTICWORKERS, NAMESPACE)
    assert not [w for w in workers["items"] if w["spec"]["jobName"] == name]
    await hollow.until("an Event", lambda: told(hollow, name, ("PodInvalid", "PodForbidden")))


async def test_a_priority_class_that_is_not_there_is_told_before_anything_is_made(hollow: Hollow) -> None:
    growth = {"opportunistic": {"priorityClassName": "idle"}}
    await hollow.submit("grows", worker={"maxReplicas": 4}, elasticPolicy=growth)

    async def status() -> dict[str, Any]:
        return await hollow.status("grows")

    first = await hollow.until("the first status", status)
    message = next(w for w in first["warnings"] if w["type"] == refusal.PODS_NOT_ACCEPTED)["message"]
    path = "spec.elasticPolicy.opportunistic.priorityClassName"
    assert message.startswith(
        f"{path}: there is no PriorityClass idle; create it. Correct the job in place within "
    )
    assert not await hollow.pods("grows")


REFUSED_AT_APPLY: list[tuple[Template, str]] = [
    (template({"env": ["A=1"]}), "spec.containers[0].env[0]"),
    (template({"env": {"A": "x"}}), "spec.containers[0].env"),
    (template({"env": [{"value": "x"}]}), "spec.containers[0].env[0].name: Required value"),
    (template({"env": [{"name": "A", "value": 5}]}), "spec.containers[0].env[0].value"),
    (template({"command": "sleep 1"}), "spec.containers[0].command"),
    (template({"resources": "much"}), "spec.containers[0].resources"),
    (template(spec={"initContainers": "x"}), "spec.initContainers"),
    (template(spec={"nodeSelector": {"gpu": True}}), "spec.nodeSelector.gpu"),
    (template(spec={"affinity": {"nodeAffinity": []}}), "spec.affinity.nodeAffinity"),
    (template(metadata={"labels": "x"}), "metadata.labels"),
    (template(metadata="x"), "metadata"),
]


@pytest.mark.parametrize(("broken", "path"), REFUSED_AT_APPLY, ids=[path for _, path in REFUSED_AT_APPLY])
async def test_a_template_without_its_shape_is_refused_at_apply(
    server: ApiServer, broken: Template, path: str
) -> None:
    async with connected(server) as hollow:
        with pytest.raises(Invalid) as refused:
            await hollow.submit("shapeless", worker={"template": broken})
    assert f"spec.replicaSpecs.worker.template.{path}" in str(refused.value)


async def test_null_is_nothing_as_in_a_pod(hollow: Hollow) -> None:
    nothing = dict.fromkeys(("env", "command", "args", "resources", "volumeMounts"))
    empty = dict.fromkeys(("initContainers", "volumes", "tolerations", "nodeSelector", "affinity"))
    await hollow.submit("nulls", worker={"template": template(nothing, empty, metadata=None)})
    await hollow.until("its Pods", lambda: _has_pods(hollow, "nulls", 2))


async def test_a_corrected_job_goes_on(hollow: Hollow) -> None:
    await hollow.submit("mended", worker={"template": template({"resources": {"limits": {"cpu": "lots"}}})})
    await sentence(hollow, "mended")
    right = {"replicas": 2, "template": template({"resources": {"limits": {"cpu": "1m"}}})}
    await hollow.client.patch(ELASTICJOBS, "mended", {"spec": {"replicaSpecs": {"worker": right}}}, NAMESPACE)
    await hollow.until("its Pods", lambda: _has_pods(hollow, "mended", 2))
    await no_warning(hollow, "mended", refusal.PODS_NOT_ACCEPTED)


async def test_a_job_that_stays_refused_fails_with_the_sentence(
    hollow: Hollow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusal, "FAIL_AFTER_SECONDS", 0.0)
    await hollow.submit("doomed", worker={"template": template({"name": "Main_1"})})
    failed = next(c for c in (await hollow.phase("doomed", "Failed"))["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "PodInvalid"
    assert "spec.replicaSpecs.worker.template.spec.containers[0].name" in failed["message"]


async def test_an_edit_that_is_refused_leaves_what_runs_alone(hollow: Hollow) -> None:
    await hollow.train("edited")
    wrong = template({"resources": {"limits": {"cpu": "lots"}}})
    patch = {"spec": {"replicaSpecs": {"worker": {"template": wrong}}}}
    await hollow.client.patch(ELASTICJOBS, "edited", patch, NAMESPACE)
    message = await sentence(hollow, "edited")
    assert "The Pods that exist go on, but no new one can be created; tried again" in message
    assert await hollow.pods("edited") == ["edited-worker-0-1", "edited-worker-1-1"], "none is rolled"
    waits = await condition(hollow, "edited", "Scaled", "False")
    assert waits["message"].startswith("still to get new resources: ")
    assert (await hollow.status("edited"))["phase"] == "Scaling", "which it is until they have them"


async def test_the_pods_are_tried_once_a_generation_and_not_by_the_next_leader(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    try_pods = PodTrial.of

    async def noted(self: PodTrial, job: ElasticJob, raw: dict[str, Any]) -> Trial:
        tried.append(job.metadata.name)
        return await try_pods(self, job, raw)

    monkeypatch.setattr(PodTrial, "of", noted)
    async with connected(server) as hollow:
        async with controllers(server):
            await hollow.train("once")
        async with controllers(server):
            await hollow.run_agent("once-worker-0", state="Succeeded", observedRound=1)
            await hollow.run_agent("once-worker-1", state="Succeeded", observedRound=1)
            await hollow.phase("once", "Succeeded")
    assert tried.count("once") == 1


CANNOT_TRY = [
    Invalid(400, "BadRequest", 'admission webhook "w.example.com" does not support dry run'),
    Forbidden(403, "Forbidden", 'pods is forbidden: User "u" cannot create resource "pods" in API group ""'),
    Forbidden(403, "Forbidden", 'pods "x" is forbidden: exceeded quota: team, used: pods=8, limited: pods=8'),
    Unavailable("Internal error occurred: failed calling webhook", status=500),
    AlreadyExists(409, "AlreadyExists", 'pods "x" already exists'),
]


@pytest.mark.parametrize("answer", CANNOT_TRY, ids=str)
async def test_who_refuses_dry_runs_does_not_hold_a_job_up(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    async def refuse(self: Client, resource: Any, obj: dict[str, Any]) -> None:
        raise answer

    monkeypatch.setattr(Client, "try_create", refuse)
    async with connected(server) as hollow, controllers(server):
        name = f"without-trial-{CANNOT_TRY.index(answer)}"
        await hollow.submit(name)
        await hollow.until("its Pods", lambda: _has_pods(hollow, name, 2))


async def sentence(hollow: Hollow, name: str) -> str:
    """Of the warning that says that its Pods are refused."""
    return str((await warning(hollow, name, refusal.PODS_NOT_ACCEPTED))["message"])


async def warning(hollow: Hollow, name: str, type_: str) -> dict[str, Any]:
    async def found() -> dict[str, Any] | None:
        warnings = (await hollow.status(name)).get("warnings", ())
        return next((w for w in warnings if w["type"] == type_), None)

    is_there: dict[str, Any] = await hollow.until(f"{type_} of {name}", found)
    return is_there


async def no_warning(hollow: Hollow, name: str, type_: str) -> None:
    async def is_gone() -> bool:
        return type_ not in [w["type"] for w in (await hollow.status(name)).get("warnings", ())]

    await hollow.until(f"no {type_} of {name}", is_gone)


async def condition(hollow: Hollow, name: str, type_: str, status: str) -> dict[str, Any]:
    async def found() -> dict[str, Any] | None:
        conditions = (await hollow.status(name)).get("conditions", ())
        return next((c for c in conditions if (c["type"], c["status"]) == (type_, status)), None)

    is_there: dict[str, Any] = await hollow.until(f"{type_}={status} of {name}", found)
    return is_there


async def test_a_job_whose_workers_are_refused_says_so(
    hollow: Hollow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ElasticWorkers themselves: by a policy, or a quota for objects."""
    monkeypatch.setattr("reconcilers.runtime.refused.RETRY_SECONDS", 600.0)
    await refuse_workers(hollow, "barred-job")
    await hollow.submit("barred-job")
    await hollow.until("an Event", lambda: told(hollow, "barred-job", ("WriteRefused",)))
    for number in range(10):
        patch = {"metadata": {"annotations": {"look": str(number)}}}
        await hollow.client.patch(ELASTICJOBS, "barred-job", patch, NAMESPACE)
        await asyncio.sleep(0.05)
    events = (await hollow.client.list(EVENTS, NAMESPACE))["items"]
    (event,) = (e for e in events if e["reason"] == "WriteRefused")
    assert event["message"].startswith("the API server refuses what the job needs: ")
    assert "over quota" in event["message"] and event.get("count", 1) == 1, "each look has asked again"


async def test_a_job_whose_workers_were_refused_gets_them_when_that_is_over(
    hollow: Hollow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconcilers.runtime.refused.RETRY_SECONDS", 0.5)
    await refuse_workers(hollow, "later-job")
    await hollow.submit("later-job")
    await hollow.until("an Event", lambda: told(hollow, "later-job", ("WriteRefused",)))
    await hollow.client.delete(BINDINGS, "later-job")
    await hollow.until("its Pods", lambda: _has_pods(hollow, "later-job", 2))


async def told(hollow: Hollow, name: str, reasons: Iterable[str]) -> bool:
    events = await hollow.client.list(EVENTS, NAMESPACE)
    return any(e["involvedObject"]["name"] == name and e["reason"] in reasons for e in events["items"])


async def _has_pods(hollow: Hollow, name: str, count: int) -> bool:
    return len(await hollow.pods(name)) == count
