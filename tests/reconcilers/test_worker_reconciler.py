"""The Worker reconciler: what it makes again, what it counts, and what it writes, over a cache that may be behind."""

from __future__ import annotations

import base64
import contextlib
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controller.errors import AlreadyExists, Conflict, Forbidden, NotFound, error_of_status
from controller.resources import LEASES, PODS, ROLEBINDINGS, ROLES, SECRETS, SERVICEACCOUNTS
from crds import names
from reconcilers.observed.builder import owner_reference
from reconcilers.observed.worker_state import EARLIER_POD_STUCK
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from reconcilers.runtime.refused import RETRY_SECONDS
from reconcilers.worker.access import secret_of
from reconcilers.worker.maker import LEFTOVER_RETRY_SECONDS, STUCK_SECONDS
from reconcilers.worker.reconciler import START_SECONDS
from tests.reconcilers.api import Write, merged
from tests.reconcilers.build import terminated
from tests.reconcilers.worker_stage import JOB, WORKER, Api, Controller, Deposed

POD = f"{WORKER}-1"


@pytest.fixture
def api() -> Api:
    api = Api()
    api.apply_job()
    return api


@pytest.fixture
def controller(api: Api) -> Controller:
    return Controller(api)


async def running(api: Api, controller: Controller) -> None:
    """The worker trains, and all is written."""
    await controller.look()
    api.pod_phase("Running")
    api.report()
    await controller.look()
    api.beat()
    await controller.look()
    assert api.status["phase"] == "Running"


def owner_of(obj: Any) -> str:
    return str(obj["metadata"]["ownerReferences"][0]["uid"])


# --- What is missing is made ----------------------------------------------------------------------------------


async def test_a_steady_look_makes_no_request(api: Api, controller: Controller) -> None:
    await running(api, controller)
    api.requests.clear()
    for _ in range(10):
        api.seconds += 10
        api.beat()
        await controller.look()
    assert api.requests == []


async def test_whether_a_worker_stands_by_is_written_by_its_job_alone(
    api: Api, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a new incarnation makes its own reconciler touch it: two writers would undo each other."""
    await running(api, controller)
    api.patch(ELASTICWORKERS, WORKER, {"status": {"standby": True}})
    api.patch(ELASTICWORKERS, WORKER, {"spec": {"incarnation": 2}})
    patches, real = [], api.apply
    monkeypatch.setattr(api, "apply", lambda write: patches.append(write.body) or real(write))
    for _ in range(3):
        await controller.look()
    assert api.status["observedIncarnation"] == 2 and api.status["standby"] is True
    assert patches and not any("standby" in patch.get("status", {}) for patch in patches)


@pytest.mark.parametrize("resource", [LEASES, SERVICEACCOUNTS, ROLES, ROLEBINDINGS])
async def test_what_a_running_worker_needs_is_made_again_in_the_next_look(
    api: Api, controller: Controller, resource: Any
) -> None:
    await running(api, controller)
    (name,) = api.names(resource)
    api.remove(resource, name)
    api.requests.clear()
    await controller.look()
    assert api.requests == [("create", resource.kind)]
    assert api.find(resource, name) is not None


async def test_silence_counts_from_when_the_lease_was_made_again(api: Api, controller: Controller) -> None:
    await running(api, controller)
    api.remove(LEASES, WORKER)
    made_again = api.seconds
    while api.status["phase"] == "Running":
        again = await controller.look()
        assert api.status["phase"] == "Failed" or again.requeue_after_seconds, "it may be silent from now on"
        api.seconds += again.requeue_after_seconds or 0
    assert api.status["restarts"] == {"NodeLost": 1}
    assert 30 <= api.seconds - made_again < 31


async def test_job_that_is_applied_again_waits_for_the_pod_and_the_lease_of_the_earlier_one(
    api: Api, controller: Controller
) -> None:
    """The cache and the server still have those of the earlier worker of the same name."""
    await running(api, controller)
    api.remove(ELASTICJOBS, JOB)
    api.remove(ELASTICWORKERS, WORKER)
    api.apply_job()
    for resource, name in ((LEASES, WORKER), (PODS, POD)):
        assert await controller.look() is not None
        waits = await controller.look()
        assert waits.requeue_after_seconds == LEFTOVER_RETRY_SECONDS
        (condition,) = api.status["conditions"]
        assert (condition["status"], condition["reason"]) == ("False", "WaitingForDeletion")
        assert f"{name} of an earlier ElasticWorker" in condition["message"]
        api.remove(resource, name)  # garbage collection
    await controller.look()
    for resource, name in ((LEASES, WORKER), (PODS, POD)):
        assert owner_of(api.get(resource, name)) == api.worker()["metadata"]["uid"]
    assert api.events == [], "nothing was refused"


async def test_a_pod_of_an_earlier_job_that_no_kubelet_ends_is_stuck_after_its_grace_period(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    api.remove(ELASTICJOBS, JOB)
    api.remove(ELASTICWORKERS, WORKER)
    api.remove(LEASES, WORKER)
    api.apply_job()

    async def reason() -> str:
        await controller.look()
        (condition,) = api.status["conditions"]
        return str(condition["reason"])

    api.seconds += 3_600
    assert await reason() == "WaitingForDeletion"
    api.seconds += 3_600
    assert await reason() == "WaitingForDeletion", "garbage collection has yet to come"
    deleted = {"deletionTimestamp": "2026-01-01T12:00:00Z", "deletionGracePeriodSeconds": 120}
    api.put(PODS, merged(api.get(PODS, POD), {"metadata": deleted}))
    assert await reason() == "WaitingForDeletion"
    api.seconds += 120 + STUCK_SECONDS - 1
    assert await reason() == "WaitingForDeletion"
    api.seconds += 1
    assert await reason() == EARLIER_POD_STUCK


async def test_a_pod_that_may_not_be_deleted_keeps_no_slot_from_its_next_one(
    api: Api, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise Forbidden(403, "Forbidden", 'admission webhook "guard" denied the request: it is protected')

    await running(api, controller)
    with monkeypatch.context() as patched:
        patched.setattr(api, "_delete", refuse)
        api.patch(ELASTICWORKERS, WORKER, {"spec": {"incarnation": 2}})
        again = await controller.look()
        await controller.look()
    assert api.find(PODS, f"{WORKER}-2") is not None and again.requeue_after_seconds is not None
    assert {event.reason for event in api.events} == {"WriteRefused"}
    await controller.look()
    assert "deletionTimestamp" in api.get(PODS, POD)["metadata"]


@pytest.mark.parametrize("protected", [POD, "another"])
async def test_of_a_deleted_worker_all_pods_go_that_may_and_the_others_are_told(
    api: Api, controller: Controller, monkeypatch: pytest.MonkeyPatch, protected: str
) -> None:
    delete = api._delete

    def refuse(write: Write) -> Any:
        if write.name == protected:
            raise Forbidden(403, "Forbidden", 'admission webhook "guard" denied the request: it is protected')
        return delete(write)

    await running(api, controller)
    pod = api.get(PODS, POD)
    api.put(PODS, pod | {"metadata": pod["metadata"] | {"name": "another", "uid": "another"}})
    metadata = {"deletionTimestamp": api.now(), "finalizers": ["example.com/hold"]}
    api.patch(ELASTICWORKERS, WORKER, {"metadata": metadata})
    monkeypatch.setattr(api, "_delete", refuse)
    with pytest.raises(Forbidden):
        await controller.look()
    going = {each["metadata"]["name"]: "deletionTimestamp" in each["metadata"] for each in api.list(PODS)}
    assert going == {POD: True, "another": True} | {protected: False}
    assert [(event.name, event.reason) for event in api.events] == [(WORKER, "WriteRefused")]


async def test_a_worker_of_an_earlier_job_gets_no_pod(api: Api, controller: Controller) -> None:
    api.remove(ELASTICJOBS, JOB)
    stale = api.worker()
    api.apply_job()
    api.put(ELASTICWORKERS, stale)
    await controller.look()
    assert api.requests == []


def is_soon(seconds: float | None) -> bool:
    """Whether a refused try is made again, at a time that no rhythm of others can meet for ever."""
    return seconds is not None and RETRY_SECONDS / 2 <= seconds < RETRY_SECONDS


def refusal(api: Api) -> tuple[str, str]:
    """Reason and message of the worker's condition; its owner shows it, and has the Event."""
    ((reason, message),) = [(each["reason"], each["message"]) for each in api.status["conditions"]]
    assert api.events == []
    return reason, message


async def test_somebody_elses_lease_is_a_refusal_that_names_it(api: Api, controller: Controller) -> None:
    api.put(LEASES, {"metadata": {"name": WORKER}, "spec": {"holderIdentity": "an elector"}})
    assert is_soon((await controller.look()).requeue_after_seconds)
    reason, message = refusal(api)
    assert reason == "PodRefused"
    assert f"the Lease {WORKER} does not belong to this ElasticWorker" in message and "delete it" in message
    assert api.get(LEASES, WORKER)["spec"] == {"holderIdentity": "an elector"}


@pytest.mark.parametrize("code", [400, 403, 409, 418])
async def test_whatever_code_a_webhook_denies_a_pod_with_it_is_told_and_tried_again(
    api: Api, controller: Controller, code: int
) -> None:
    api.refusals[PODS] = error_of_status(
        {"message": 'admission webhook "w.example.com" denied the request: not today'}, code
    )
    for _ in range(3):
        assert is_soon((await controller.look()).requeue_after_seconds)
        api.seconds += RETRY_SECONDS
    words = f"the API server refuses the Pods of type worker: {api.refusals[PODS]}"
    assert refusal(api) == ("PodForbidden", words)
    api.refusals[PODS] = Forbidden(403, "Forbidden", "exceeded quota: team")
    await controller.look()
    assert refusal(api) == ("PodRefused", f"Pod {POD} was refused: exceeded quota: team")
    del api.refusals[PODS]
    await controller.look()
    assert api.pod() is not None


async def test_of_many_workers_that_are_refused_no_more_try_in_a_second_than_a_server_can_bear(
    api: Api, controller: Controller
) -> None:
    many = merged(api.get(ELASTICJOBS, JOB), {"spec": {"replicaSpecs": {"worker": {"replicas": 10_000}}}})
    api.put(ELASTICJOBS, many)
    api.refusals[PODS] = Forbidden(403, "Forbidden", "exceeded quota: team")
    wait = (await controller.look()).requeue_after_seconds
    assert wait is not None and 100 <= wait <= 200


async def test_what_cannot_be_made_again_is_told_and_does_not_disturb_the_worker(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    api.remove(LEASES, WORKER)
    api.refusals[LEASES] = Forbidden(403, "Forbidden", "exceeded quota: leases")
    assert is_soon((await controller.look()).requeue_after_seconds)
    (event,) = api.events
    assert event.reason == "AgentAccessRefused" and POD in event.message and "exceeded quota" in event.message
    assert api.status["phase"] == "Running"


async def test_job_that_is_made_again_gets_its_account_though_the_cache_still_shows_the_old_one(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    for resource in list(api.objects):
        for name in api.names(resource):
            api.remove(resource, name)
    api.apply_job()
    for resource in (ELASTICJOBS, ELASTICWORKERS):
        controller.cache.note_write(resource, api.list(resource)[0])
    await controller.look(late=True)
    assert api.pod() is not None and api.events == []
    await controller.look()
    assert {kind for kind in api.objects if api.list(kind)} >= {
        SERVICEACCOUNTS,
        ROLES,
        ROLEBINDINGS,
        LEASES,
        PODS,
    }


async def test_its_account_pulls_images_with_the_secrets_of_the_namespaces_default_account(
    api: Api, controller: Controller
) -> None:
    for name, secret in (("default", "registry"), ("other", "theirs")):
        api.create(SERVICEACCOUNTS, {"metadata": {"name": name}, "imagePullSecrets": [{"name": secret}]})
    await controller.look()
    pod = api.pod()
    assert pod is not None
    account = api.get(SERVICEACCOUNTS, pod["spec"]["serviceAccountName"])
    assert account["imagePullSecrets"] == [{"name": "registry"}]


# --- The key of the job ---------------------------------------------------------------------------------------


def waits_for_key(api: Api) -> None:
    missing = f'secret "{names.key_secret(api.get(ELASTICJOBS, JOB)["metadata"]["uid"])}" not found'
    waiting = {"waiting": {"reason": "CreateContainerConfigError", "message": missing}}
    api.pod_phase("Pending", containerStatuses=[{"name": "main", "state": waiting}])


def relaunch(api: Api) -> None:
    incarnation = api.worker()["spec"]["incarnation"]
    api.patch(ELASTICWORKERS, WORKER, {"spec": {"incarnation": incarnation + 1}})


def key_of(api: Api) -> str:
    (secret,) = api.list(SECRETS)
    return base64.b64decode(secret["data"]["key"]).decode()


async def test_the_key_is_random_and_comes_before_the_first_pod_of_its_job(
    api: Api, controller: Controller
) -> None:
    await controller.look()
    owner = api.get(ELASTICJOBS, JOB)
    secret = api.get(SECRETS, f"dlr-key-{owner['metadata']['uid']}")
    assert secret["immutable"] is True and owner_of(secret) == owner["metadata"]["uid"]
    assert secret["metadata"]["labels"][names.LABEL_JOB] == JOB
    assert re.fullmatch("[0-9a-f]{64}", key_of(api))
    assert key_of(api) != base64.b64decode(secret_of(owner)["data"]["key"]).decode()
    made = [kind for verb, kind in api.requests if verb == "create"]
    assert made.index("Secret") < made.index("Pod")


async def test_the_next_controller_leaves_the_key_as_it_is(api: Api, controller: Controller) -> None:
    await running(api, controller)
    key = key_of(api)
    relaunch(api)
    api.requests.clear()
    await Controller(api).look()
    assert api.pod() is not None and key_of(api) == key
    assert ("create", "Secret") not in api.requests, "the earlier Pod runs, so it is there"


async def test_a_deleted_key_is_not_replaced_while_a_pod_runs_with_it(
    api: Api, controller: Controller
) -> None:
    """A Pod with another key could not talk to the rest of its job."""
    await running(api, controller)
    (name,) = api.names(SECRETS)
    api.remove(SECRETS, name)
    owners = api.worker()["metadata"]["ownerReferences"]
    metadata = {"name": f"{JOB}-worker-1", "ownerReferences": owners}
    beside = api.put(ELASTICWORKERS, api.worker() | {"metadata": metadata})
    owner = owner_reference("ElasticWorker", beside["metadata"]["name"], beside["metadata"]["uid"])
    labels = {names.LABEL_MANAGED_BY: names.MANAGER}
    metadata = {"name": f"{JOB}-worker-1-1", "labels": labels, "ownerReferences": [owner]}
    api.put(PODS, {"metadata": metadata, "status": {"phase": "Running"}})
    relaunch(api)
    for process in (controller, Controller(api)):
        await process.look()
        waits_for_key(api)
        await process.look()
        assert api.find(SECRETS, name) is None
    assert "suspend and resume the job" in api.status["message"]


async def test_a_deleted_key_is_replaced_when_no_pod_has_it_any_more(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    (name,) = api.names(SECRETS)
    api.remove(SECRETS, name)
    api.pod_phase("Failed")
    relaunch(api)
    await controller.look()
    assert api.pod() is not None and api.find(SECRETS, name) is None, "nobody has seen that it is gone"
    waits_for_key(api)
    result = await controller.look()
    assert api.find(SECRETS, name) is None, "of many Pods that wait not each makes one"
    assert result.requeue_after_seconds is not None
    api.seconds += result.requeue_after_seconds
    await controller.look()
    assert api.find(SECRETS, name) is not None


async def test_a_job_that_was_suspended_gets_a_new_key_if_the_old_one_is_gone(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    (name,) = api.names(SECRETS)
    api.patch(ELASTICJOBS, JOB, {"spec": {"suspend": True}})
    await controller.look()
    api.remove(SECRETS, name)
    for pod in api.names(PODS):
        api.remove(PODS, pod)
    api.patch(ELASTICJOBS, JOB, {"spec": {"suspend": False}})
    relaunch(api)
    await controller.look()
    assert api.pod() is not None and api.find(SECRETS, name) is not None


async def test_a_key_that_a_quota_refuses_keeps_the_pod_back_and_says_so(
    api: Api, controller: Controller
) -> None:
    api.refusals[SECRETS] = Forbidden(403, "Forbidden", "exceeded quota: secrets")
    await controller.look()
    assert api.pod() is None
    assert "exceeded quota: secrets" in api.status["message"]


# --- What is written ------------------------------------------------------------------------------------------


async def test_a_worker_that_starts_quickly_costs_one_write_of_its_status(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    written = [kind for verb, kind in api.requests if verb == "patch"]
    assert written == ["ElasticWorker"]
    made = [kind for verb, kind in api.requests if verb == "create"]
    assert made == ["ServiceAccount", "Role", "RoleBinding", "Secret", "Lease", "Pod"]
    assert len(api.requests) == 7, "and nothing is read"


async def test_that_an_extra_workers_pod_has_a_node_is_told_before_it_runs(
    api: Api, controller: Controller
) -> None:
    """The next probe for free room waits to hear of it."""
    scaling = {"replicas": 1, "by": "spec", "at": "2026-01-01T12:00:00Z", "base": 0}
    policy = {"opportunistic": {"priorityClassName": "idle"}}
    grows = {"spec": {"elasticPolicy": policy}, "status": {"scaling": scaling}}
    api.patch(ELASTICJOBS, JOB, grows)
    await controller.look()
    assert api.status == {}, "that it is on its way is no news"
    api.pod_phase("Pending")
    await controller.look()
    assert (api.status["phase"], api.status["nodeName"]) == ("Pending", "node-0")


async def test_pods_of_a_large_job_may_take_as_long_as_a_scheduler_needs_for_them(
    api: Api, controller: Controller
) -> None:
    api.patch(ELASTICJOBS, JOB, {"spec": {"replicaSpecs": {"worker": {"replicas": 10_000}}}})
    assert (await controller.look()).requeue_after_seconds == 40
    api.seconds += 39
    await controller.look()
    assert api.status == {}
    api.seconds += 1
    await controller.look()
    assert api.status["phase"] == "Pending"


async def test_a_pod_that_finds_no_node_is_told_at_once(api: Api, controller: Controller) -> None:
    await controller.look()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}
    api.pod_phase("Pending", conditions=[unscheduled])
    await controller.look()
    assert (api.status["phase"], api.status["message"]) == ("Pending", "full")


async def test_a_pod_that_goes_before_it_was_written_down_has_ended_all_the_same(
    api: Api, controller: Controller
) -> None:
    await controller.look()
    api.remove(PODS, POD)
    await controller.look()
    assert api.status["restarts"] == {"Killed": 1} and api.pod() is None


async def test_why_a_pod_ended_outlives_it_when_the_write_was_refused(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    leaves = {"metadata": {"deletionTimestamp": "2026-01-01T12:00:00Z"}, "status": {"conditions": [evicted]}}
    api.put(PODS, merged(api.get(PODS, POD), leaves))
    controller.deliver()
    api.report("Running")
    with pytest.raises(Conflict):
        await controller.look(late=True)
    api.remove(PODS, POD)
    await controller.look()
    assert api.status["restarts"] == {"Preempted": 1}


@pytest.mark.parametrize(
    ("labels", "namespace"),
    [
        ({names.LABEL_INCARNATION: "one"}, None),
        ({names.LABEL_INCARNATION: "9" * 5_000}, None),
        ({}, None),
        ({names.LABEL_INCARNATION: "0"}, "team-b"),
    ],
)
async def test_a_strangers_pod_that_names_the_worker_as_its_owner_is_left_alone(
    api: Api, controller: Controller, labels: dict[str, str], namespace: str | None
) -> None:
    await running(api, controller)
    pod = api.get(PODS, POD)
    metadata = pod["metadata"] | {"name": "stranger", "uid": "s", "labels": labels}
    if namespace is not None:
        metadata["namespace"] = namespace
    controller.deliver()
    controller.cache.store(PODS).apply({**pod, "metadata": metadata})
    api.requests.clear()
    await controller.look(late=True)
    assert api.requests == []


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
async def test_a_worker_whose_type_was_removed_from_the_job_is_released(
    api: Api, controller: Controller, phase: str
) -> None:
    await running(api, controller)
    stored = api.get(ELASTICJOBS, JOB)
    specs = {"evaluator": stored["spec"]["replicaSpecs"]["worker"]}
    api.put(ELASTICJOBS, {**stored, "spec": {"replicaSpecs": specs}, "status": {"phase": phase}})
    await controller.look()
    assert api.status["phase"] == "Running"
    api.remove(PODS, POD)
    await controller.look()
    assert api.pod() is None, "it gets no other"


async def test_a_job_that_cannot_be_read_is_not_its_workers_fault(api: Api, controller: Controller) -> None:
    await running(api, controller)
    stored = api.get(ELASTICJOBS, JOB)
    api.put(ELASTICJOBS, merged(stored, {"spec": {"replicaSpecs": {"worker": {"replicas": "many"}}}}))
    api.requests.clear()
    await controller.look()
    assert api.requests == []


async def test_a_report_that_cannot_be_read_is_told_once_until_there_is_another(
    api: Api, controller: Controller
) -> None:
    await running(api, controller)
    api.events.clear()
    good = api.status["agent"]
    api.put(
        ELASTICWORKERS, merged(api.worker(), {"status": {"agent": {"since": "2026-01-01T00:00:00+99:99"}}})
    )
    for _ in range(3):
        await controller.look()
    assert [(c["type"], c["status"]) for c in api.status["conditions"]] == [("ReportReadable", "False")]
    assert [event.reason for event in api.events] == ["ReportUnreadable"]
    api.put(ELASTICWORKERS, merged(api.worker(), {"status": {"agent": good}}))
    await controller.look()
    assert api.status.get("conditions", []) == []


# --- Ends are counted once ------------------------------------------------------------------------------------


ACTIONS = [
    *("look", "look late", "depose", "depose late", "land", "land", "wait"),
    *("run", "report", "fail", "delete", "vanish", "run and depose", "fail and look", "replace and look"),
    *("relaunch", "relaunch and look", "relaunch and depose"),
]


A_LATE_END = ["look", "wait", "depose", "fail and look", "land", "depose", "look", "relaunch and look"]
"""The ex-leader's word that the first incarnation has failed lands when the second runs."""


@example(sequences=A_LATE_END)
@given(sequences=st.lists(st.sampled_from(ACTIONS), max_size=30))
async def test_each_incarnation_has_one_pod_whose_end_is_counted_once(sequences: list[str]) -> None:
    """In any order of observations that are late or repeated, and of writes of ex-leaders that land late."""
    api = Api()
    api.apply_job()
    leader, late = Controller(api), []
    for action in (action for sequence in sequences for action in sequence.split(" and ")):
        if action.startswith("depose"):
            leader.in_flight = late
            with contextlib.suppress(Deposed, NotFound):
                await leader.look(late=action == "depose late")
            leader = Controller(api)
        else:
            await act(api, leader, late, action)
    for write in late:
        land(write)
    await leader.look_until_quiet()
    status, incarnation = api.status, api.worker()["spec"]["incarnation"]
    ended = incarnation if status.get("phase") == "Failed" else incarnation - 1
    assert status.get("restartCount", 0) == sum(status.get("restarts", {}).values()) == ended
    assert [life["incarnation"] for life in status.get("history", [])][-1:] == [incarnation]
    pod = api.pod()
    assert (pod is None or "deletionTimestamp" in pod["metadata"]) <= (status["phase"] == "Failed")


async def act(api: Api, leader: Controller, late: list[Any], action: str) -> None:
    if action in ("look", "look late"):
        with contextlib.suppress(Conflict):
            await leader.look(late=action == "look late")
    elif action == "land" and late:
        land(late.pop())
    elif action == "wait":
        api.seconds += START_SECONDS
    elif action in ("relaunch", "replace"):
        raise_incarnation(api, action)
    elif action == "vanish":  # what nobody saw did not end
        with contextlib.suppress(Conflict):
            await leader.look()
            if api.lives():
                api.remove(PODS, api.worker_pod_name())
    elif api.lives():
        happen(api, action)


def raise_incarnation(api: Api, action: str) -> None:
    """As the job's reconciler does: after an end, or because a check found the node faulty."""
    status, incarnation = api.status, api.worker()["spec"]["incarnation"]
    if status.get("observedIncarnation") != incarnation:
        return
    spec: dict[str, Any] = {"incarnation": incarnation + 1}
    if action == "relaunch" and status["phase"] == "Failed":
        api.put(ELASTICWORKERS, merged(api.worker(), {"spec": spec}))
    elif action == "replace" and status["phase"] == "Running" and status.get("nodeName"):
        api.put(ELASTICWORKERS, merged(api.worker(), {"spec": spec | {"faultyNodes": ["node-0"]}}))


def happen(api: Api, what: str) -> None:
    """To the Pod."""
    pod = api.pod()
    assert pod is not None
    if what == "run":
        api.pod_phase("Running")
    elif what == "fail":
        api.pod_phase("Failed", containerStatuses=[terminated(1)])
    elif what == "delete":
        api.delete(PODS, pod["metadata"]["name"])
    elif what == "report" and pod["status"]["phase"] == "Running":
        api.report()


def land(write: Any) -> None:
    with contextlib.suppress(Conflict, NotFound, AlreadyExists, Forbidden):
        write()
