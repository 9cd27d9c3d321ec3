"""What the Pods of replica groups share, and what keeps others from it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from controller.resources import PODS, ROLES, SECRETS
from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from crds.grouping import GroupOf
from reconcilers.groups.children import group_job
from reconcilers.job.published import world_of
from reconcilers.observed.builder import owner_reference
from reconcilers.observed.groups import group_labels, group_of, is_unknown_to, stranger_to
from reconcilers.observed.workers import new_worker
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.worker.access import OwnerKeys, access_of, rules_of, secret_of
from reconcilers.worker.companions import network_policy_of
from reconcilers.worker.job_pod import build_job_pod
from tests.reconcilers.build import job
from tests.reconcilers.worker_stage import Api, Controller

GROUPED = "big"
SECRET = "dlr-key-uid-big"


def grouped(namespace: str = "default") -> dict[str, Any]:
    made = job(GROUPED, replicas=6, elasticPolicy={"replicaGroups": {"workers": 2}}).to_wire()
    metadata = made["metadata"] | {"namespace": namespace, "generation": 1}
    status = {"groups": [{"index": index, "uid": f"uid-group-{index}"} for index in range(3)]}
    return made | {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": metadata,
        "status": status,
    }


def child(index: int, **metadata: Any) -> dict[str, Any]:
    made = group_job(grouped(), index)
    return made | {"metadata": made["metadata"] | {"uid": f"uid-group-{index}"} | metadata}


def impostor(**metadata: Any) -> dict[str, Any]:
    """An ElasticJob of a tenant's own, with the labels that groups have."""
    return child(1, **{"uid": "uid-impostor", "ownerReferences": []} | metadata)


def pod_of(raw: dict[str, Any]) -> dict[str, Any]:
    owner = ElasticJob.model_validate(raw)
    worker = new_worker(owner, names.WORKER, 1)
    worker["metadata"]["uid"] = "w"
    return build_job_pod(owner, ElasticWorker.model_validate(worker))


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}


# --- What groups share ------------------------------------------------------------------------------------


def test_a_groups_objects_say_which_group_of_which_job_they_are() -> None:
    labels = {names.LABEL_GROUPED_JOB: GROUPED, names.LABEL_GROUP_INDEX: "2"}
    made, pod = child(2), pod_of(child(2))
    worker = new_worker(ElasticJob.model_validate(made), names.WORKER, 0)
    for each in (made, pod, worker, world_of(made)):
        assert labels.items() <= each["metadata"]["labels"].items()
    env = variables(pod)
    assert env[names.ENV_JOB_NAME]["value"] == "big-group-2"
    assert env[names.ENV_GROUPED_JOB]["value"] == GROUPED
    assert env[names.ENV_GROUP_INDEX]["value"] == "2"


def test_all_groups_have_the_key_of_their_job_which_owns_it() -> None:
    for index in range(3):
        key = variables(pod_of(child(index)))[names.ENV_JOB_KEY]["valueFrom"]["secretKeyRef"]
        metadata = secret_of(child(index))["metadata"]
        assert key["name"] == metadata["name"] == SECRET
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == ["uid-big"]
        assert metadata["labels"][names.LABEL_JOB] == GROUPED


def test_an_agent_follows_its_groups_world_and_its_jobs_and_no_other() -> None:
    (worlds,) = (rule for rule in rules_of(child(2)) if rule["resources"] == ["elasticworlds"])
    assert worlds["resourceNames"] == ["big-group-2", GROUPED] and worlds["verbs"] == ["list", "watch"]
    roles = [obj for resource, obj in access_of(child(2), "dlr-uid-group-2") if resource == ROLES]
    assert [role["metadata"]["name"] for role in roles] == ["dlr-uid-group-2"], (
        "a Role of its own for each group"
    )


def test_a_groups_policy_admits_the_pods_of_all_groups_of_its_job() -> None:
    (rule,) = network_policy_of(child(0))["spec"]["ingress"]
    selectors = [each["podSelector"]["matchLabels"] for each in rule["from"]]

    def is_admitted(raw: dict[str, Any]) -> bool:
        labels = pod_of(raw)["metadata"]["labels"]
        return any(selector.items() <= labels.items() for selector in selectors)

    assert is_admitted(child(0)) and is_admitted(child(2))
    assert not is_admitted(impostor(name="mine"))


# --- Who is a group -------------------------------------------------------------------------------------------


def owner(**changes: Any) -> dict[str, Any]:
    return owner_reference("ElasticJob", GROUPED, "uid-big") | changes


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"ownerReferences": [owner(controller=False)]},
        {"ownerReferences": [owner(kind="Job", apiVersion="batch/v1")]},
        {"ownerReferences": [owner(name="other")]},
        {"name": "mine", "ownerReferences": [owner()]},
        {"name": "big-group-01", "ownerReferences": [owner()]},
        {"name": "big-group-", "ownerReferences": [owner()]},
        {"name": "big-group-²", "ownerReferences": [owner()]},
    ],
)
def test_labels_of_a_group_alone_give_no_key_and_no_way_to_its_pods(metadata: dict[str, Any]) -> None:
    raw = impostor(**metadata)
    assert (
        group_of(raw) is None and group_of(ElasticJob.model_validate(raw)) is None and group_labels(raw) == {}
    )
    assert secret_of(raw)["metadata"]["name"] == "dlr-key-uid-impostor"
    pod = pod_of(raw)
    assert variables(pod)[names.ENV_JOB_KEY]["valueFrom"]["secretKeyRef"]["name"] == "dlr-key-uid-impostor"
    assert names.ENV_GROUPED_JOB not in variables(pod)
    assert names.LABEL_GROUPED_JOB not in pod["metadata"]["labels"]
    assert names.LABEL_GROUPED_JOB not in world_of(raw)["metadata"]["labels"]
    (worlds,) = (rule for rule in rules_of(raw) if rule["resources"] == ["elasticworlds"])
    assert worlds["resourceNames"] == [raw["metadata"]["name"]]


def test_a_templates_own_labels_are_no_way_to_a_groups_pods() -> None:
    labels = {names.LABEL_GROUPED_JOB: GROUPED, names.LABEL_GROUP_INDEX: "0"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    pod = pod_of(job("mine", template=template).to_wire() | {"kind": "ElasticJob"})
    assert not labels.keys() & pod["metadata"]["labels"].keys()


def test_the_group_is_that_of_the_name_whatever_the_labels_say() -> None:
    raw = child(2, labels={names.LABEL_GROUP_INDEX: "0", names.LABEL_GROUPED_JOB: "other"})
    assert group_of(raw) == GroupOf(GROUPED, "uid-big", 2)
    assert pod_of(raw)["metadata"]["labels"][names.LABEL_GROUP_INDEX] == "2"


@pytest.mark.parametrize("index", [0, 2])
def test_what_a_job_wants_as_its_group_is_one(index: int) -> None:
    assert stranger_to(child(index), grouped()) == ""
    assert stranger_to(grouped(), None) == ""


def test_whoever_names_a_job_as_its_owner_is_no_group_unless_the_job_wants_one_of_the_name() -> None:
    ungrouped, other = grouped(), grouped()
    del ungrouped["spec"]["elasticPolicy"]["replicaGroups"]
    other["metadata"]["uid"] = "uid-other"
    assert "there is no such job" in stranger_to(child(1), None)
    assert "there is no such job" in stranger_to(child(1), other)
    assert "which has none" in stranger_to(child(1), ungrouped)
    assert stranger_to(child(3), grouped()) == "big-group-3 is no replica group of big, which has 3"


def test_a_job_of_a_groups_name_and_owner_is_none_unless_its_job_has_its_uid() -> None:
    forged = impostor(ownerReferences=[owner()])
    assert stranger_to(forged, grouped()) == "the status of big does not have big-group-1"
    assert is_unknown_to(forged, grouped()) and not is_unknown_to(child(1), grouped())
    assert is_unknown_to(child(1), grouped() | {"status": {}}) and not is_unknown_to(child(3), grouped())


# --- One key, made once -----------------------------------------------------------------------------------


@pytest.fixture
def api() -> Api:
    api = Api()
    api.put(ELASTICJOBS, grouped())
    for index in range(3):
        api.put(ELASTICJOBS, child(index))
    return api


def keys(controller: Controller) -> OwnerKeys:
    controller.deliver()
    return OwnerKeys(controller.client, controller.cache, lambda: 0.0)  # type: ignore[arg-type]


def run_pod(api: Api, index: int, namespace: str = "default") -> None:
    """A Pod of a group runs."""
    of = ElasticJob.model_validate(child(index))
    worker = api.put(ELASTICWORKERS, new_worker(of, names.WORKER, 0))
    reference = owner_reference("ElasticWorker", worker["metadata"]["name"], worker["metadata"]["uid"])
    metadata = {
        "name": f"{worker['metadata']['name']}-1",
        "namespace": namespace,
        "labels": {names.LABEL_MANAGED_BY: names.MANAGER},
        "ownerReferences": [reference],
    }
    api.put(PODS, {"metadata": metadata, "status": {"phase": "Running"}})


async def test_the_second_group_finds_the_key_of_the_first(api: Api) -> None:
    controller = Controller(api)
    held = keys(controller)
    await held.ensure(child(0))
    key = api.get(SECRETS, SECRET)["data"]["key"]
    assert len(base64.b64decode(key)) == 64
    for again in (held, keys(Controller(api))):
        await again.ensure(child(1))
        await again.ensure(child(0))
    assert api.get(SECRETS, SECRET)["data"]["key"] == key


async def test_a_groups_start_replaces_no_key_that_another_groups_pod_runs_with(api: Api) -> None:
    controller = Controller(api)
    run_pod(api, 0)
    await keys(controller).ensure(child(1))
    assert api.find(SECRETS, SECRET) is None, "it was deleted: its Pods would talk to no others"


async def test_a_pod_of_another_namespace_keeps_no_key_from_being_made(api: Api) -> None:
    run_pod(api, 0, namespace="elsewhere")
    await keys(Controller(api)).ensure(child(1))
    assert api.find(SECRETS, SECRET) is not None


def test_a_node_check_with_a_groups_name_and_owner_is_no_group() -> None:
    raw = child(2) | {"kind": NODECHECKS.kind}
    assert group_of(raw) is None and group_labels(raw) == {} and stranger_to(raw, None) == ""
    assert secret_of(raw)["metadata"]["ownerReferences"][0]["uid"] == raw["metadata"]["uid"]
    (peers,) = (rule["from"] for rule in network_policy_of(raw)["spec"]["ingress"])
    assert len(peers) == 1
