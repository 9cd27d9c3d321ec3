"""Pods: what a new one is given, what may change, its binding and its logs."""

from __future__ import annotations

import pytest

from tests.localcluster.apiserver.api import PODS, Api, pod

pytestmark = pytest.mark.real

BINDING = {
    "apiVersion": "v1",
    "kind": "Binding",
    "metadata": {"name": "one"},
    "target": {"apiVersion": "v1", "kind": "Node", "name": "node-0"},
}


async def test_what_is_wrong_with_a_pod_is_told_by_path(api: Api) -> None:
    containers = [
        {"name": "main", "image": "a", "volumeMounts": [{"name": "none", "mountPath": "/x"}]},
        {"name": "main", "image": "a"},
        {"name": "third"},
    ]
    answer = await api.post(PODS, pod("one", containers=containers))
    fields = {cause["field"] for cause in answer.body["details"]["causes"]}
    assert fields == {
        "spec.containers[0].volumeMounts[0].name",
        "spec.containers[1].name",
        "spec.containers[2].image",
    }
    answer = await api.post(PODS, pod("one", serviceAccountName="nobody"))
    assert answer.status == 403 and 'serviceaccount "nobody" not found' in answer.message
    answer = await api.post(PODS, pod("one", priorityClassName="nothing"))
    assert answer.status == 403 and "no PriorityClass with name nothing" in answer.message


async def test_a_pod_is_bound_once(api: Api) -> None:
    await api.created(PODS, pod("one"))
    assert (await api.post(f"{PODS}/one/binding", BINDING)).status == 201
    bound = (await api.get(f"{PODS}/one")).body
    assert bound["spec"]["nodeName"] == "node-0"
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    again = await api.post(f"{PODS}/one/binding", BINDING)
    assert again.status == 409 and "already assigned to node" in again.message
    assert (await api.get(PODS, fieldSelector="spec.nodeName=node-0")).names == ["one"]


async def test_interactive_subresources_are_refused_in_a_sentence(api: Api) -> None:
    await api.created(PODS, pod("one"))
    for name in ("exec", "attach", "portforward"):
        answer = await api.get(f"{PODS}/one/{name}")
        assert answer.status == 405 and f"pods/{name}" in answer.message
    assert (await api.get(f"{PODS}/one/nonsense")).status == 404


async def test_a_pod_with_a_node_is_given_its_grace_and_a_finished_one_needs_none(api: Api) -> None:
    await api.created(PODS, pod("one", terminationGracePeriodSeconds=20))
    await api.post(f"{PODS}/one/binding", BINDING)
    deleting = (await api.delete(f"{PODS}/one")).body["metadata"]
    assert deleting["deletionGracePeriodSeconds"] == 20
    longer = (await api.delete(f"{PODS}/one", {"gracePeriodSeconds": 60})).body["metadata"]
    assert longer["deletionTimestamp"] == deleting["deletionTimestamp"]
    shorter = (await api.delete(f"{PODS}/one", {"gracePeriodSeconds": 5})).body["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    await api.delete(f"{PODS}/one", {"gracePeriodSeconds": 0})
    assert (await api.get(f"{PODS}/one")).status == 404
    await api.created(PODS, pod("one"))
    await api.post(f"{PODS}/one/binding", BINDING)
    await api.patch(f"{PODS}/one/status", {"status": {"phase": "Succeeded"}})
    await api.delete(f"{PODS}/one")
    assert (await api.get(f"{PODS}/one")).status == 404
