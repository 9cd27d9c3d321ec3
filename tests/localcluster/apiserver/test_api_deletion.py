"""Deletion: grace, finalizers, owners, namespaces."""

from typing import Any

import pytest

from tests.localcluster.apiserver.api import (
    CONFIG_MAPS,
    CRDS,
    PODS,
    WIDGETS,
    Api,
    config_map,
    owned_by,
    pod,
    widget,
)

pytestmark = pytest.mark.real

NAMESPACES = "/api/v1/namespaces"


def exists(answer: Any) -> bool:
    return answer.code == 200


async def bind(api: Api, name: str) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-0"}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    assert (await api.post(f"{PODS}/{name}/binding", body)).code == 201


async def test_a_plain_deletion_answers_success_with_details(api: Api) -> None:
    created = await api.created(CONFIG_MAPS, config_map("one"))
    answer = await api.delete(f"{CONFIG_MAPS}/one")
    assert (answer.code, answer.body["status"]) == (200, "Success")
    details = {"name": "one", "kind": "configmaps", "uid": created["metadata"]["uid"]}
    assert answer.body["details"] == details
    assert (await api.get(f"{CONFIG_MAPS}/one")).code == 404
    assert (await api.delete(f"{CONFIG_MAPS}/one")).code == 404


async def test_preconditions_protect_a_namesake(api: Api) -> None:
    await api.created(CONFIG_MAPS, config_map("one"))
    answer = await api.delete(f"{CONFIG_MAPS}/one", {"preconditions": {"uid": "another"}})
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: another" in answer.message
    assert (await api.delete(f"{CONFIG_MAPS}/one", {"preconditions": {"resourceVersion": "1"}})).code == 409
    assert exists(await api.get(f"{CONFIG_MAPS}/one"))


async def test_finalizers_hold_an_object_until_the_last_is_gone(widgets: Api) -> None:
    await widgets.created(WIDGETS, widget("one", finalizers=["example.com/a", "example.com/b"]))
    deleting = (await widgets.delete(f"{WIDGETS}/one")).body
    assert deleting["metadata"]["deletionTimestamp"] and deleting["metadata"]["generation"] == 2
    again = (await widgets.delete(f"{WIDGETS}/one")).body
    assert again["metadata"]["resourceVersion"] == deleting["metadata"]["resourceVersion"]
    added = {"metadata": {"finalizers": ["example.com/a", "example.com/c"]}}
    refused = await widgets.patch(f"{WIDGETS}/one", added)
    assert refused.code == 422 and "no new finalizers can be added" in refused.message
    left = await widgets.patch(f"{WIDGETS}/one", {"metadata": {"finalizers": ["example.com/a"]}})
    assert left.body["metadata"]["finalizers"] == ["example.com/a"]
    assert (await widgets.patch(f"{WIDGETS}/one", {"metadata": {"finalizers": None}})).code == 200
    assert (await widgets.get(f"{WIDGETS}/one")).code == 404


async def test_an_unscheduled_pod_goes_at_once(api: Api) -> None:
    await api.created(PODS, pod("one"))
    assert (await api.delete(f"{PODS}/one")).body["kind"] == "Pod"
    assert (await api.get(f"{PODS}/one")).code == 404


async def test_a_scheduled_pod_is_given_its_grace(api: Api) -> None:
    await api.created(PODS, pod("one", terminationGracePeriodSeconds=20))
    await bind(api, "one")
    deleting = (await api.delete(f"{PODS}/one")).body["metadata"]
    assert deleting["deletionGracePeriodSeconds"] == 20
    longer = (await api.delete(f"{PODS}/one", {"gracePeriodSeconds": 60})).body["metadata"]
    assert longer["deletionTimestamp"] == deleting["deletionTimestamp"]
    shorter = (await api.delete(f"{PODS}/one", {"gracePeriodSeconds": 5})).body["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    assert exists(await api.get(f"{PODS}/one"))
    await api.delete(f"{PODS}/one", {"gracePeriodSeconds": 0})
    assert (await api.get(f"{PODS}/one")).code == 404


async def test_a_finished_pod_needs_no_grace(api: Api) -> None:
    await api.created(PODS, pod("one"))
    await bind(api, "one")
    await api.patch(f"{PODS}/one/status", {"status": {"phase": "Succeeded"}})
    await api.delete(f"{PODS}/one")
    assert (await api.get(f"{PODS}/one")).code == 404


async def test_dependents_go_with_their_owner(widgets: Api) -> None:
    owner = await widgets.created(WIDGETS, widget("owner"))
    child = await widgets.created(WIDGETS, widget("child", ownerReferences=owned_by(owner)))
    await widgets.created(CONFIG_MAPS, config_map("grandchild", ownerReferences=owned_by(child)))
    await widgets.delete(f"{WIDGETS}/owner")
    await widgets.gone(f"{WIDGETS}/child")
    await widgets.gone(f"{CONFIG_MAPS}/grandchild")


async def test_a_dependent_of_two_stays_for_the_other(widgets: Api) -> None:
    one = await widgets.created(WIDGETS, widget("one"))
    two = await widgets.created(WIDGETS, widget("two"))
    references = [*owned_by(one), {**owned_by(two)[0], "controller": False}]
    await widgets.created(WIDGETS, widget("child", ownerReferences=references))
    await widgets.delete(f"{WIDGETS}/one")
    child = await widgets.eventually(
        f"{WIDGETS}/child", lambda answer: len(answer.body["metadata"]["ownerReferences"]) == 1
    )
    assert child.body["metadata"]["ownerReferences"][0]["name"] == "two"


async def test_an_owner_of_the_same_name_but_another_uid_does_not_count(widgets: Api) -> None:
    owner = await widgets.created(WIDGETS, widget("owner"))
    stale = [{**owned_by(owner)[0], "uid": "of-an-earlier-owner"}]
    await widgets.post(WIDGETS, widget("child", ownerReferences=stale))
    await widgets.gone(f"{WIDGETS}/child")


async def test_an_owner_of_an_unknown_kind_gets_the_benefit_of_the_doubt(widgets: Api) -> None:
    foreign = {"apiVersion": "other.io/v1", "kind": "Thing", "name": "x", "uid": "y"}
    await widgets.created(WIDGETS, widget("child", ownerReferences=[foreign]))
    await widgets.created(WIDGETS, widget("later"))
    assert exists(await widgets.get(f"{WIDGETS}/child"))


async def test_foreground_deletion_waits_for_the_dependents_that_block_it(widgets: Api) -> None:
    owner = await widgets.created(WIDGETS, widget("owner"))
    held = widget("child", ownerReferences=owned_by(owner, blocks=True), finalizers=["example.com/hold"])
    await widgets.created(WIDGETS, held)
    answer = await widgets.delete(f"{WIDGETS}/owner", {"propagationPolicy": "Foreground"})
    assert answer.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    await widgets.eventually(
        f"{WIDGETS}/child", lambda answer: "deletionTimestamp" in answer.body["metadata"]
    )
    assert exists(await widgets.get(f"{WIDGETS}/owner"))
    await widgets.patch(f"{WIDGETS}/child", {"metadata": {"finalizers": None}})
    await widgets.gone(f"{WIDGETS}/owner")


async def test_orphaning_leaves_the_dependents_without_owner(widgets: Api) -> None:
    owner = await widgets.created(WIDGETS, widget("owner"))
    await widgets.created(WIDGETS, widget("child", ownerReferences=owned_by(owner)))
    await widgets.delete(f"{WIDGETS}/owner", {"propagationPolicy": "Orphan"})
    await widgets.gone(f"{WIDGETS}/owner")
    assert "ownerReferences" not in (await widgets.get(f"{WIDGETS}/child")).body["metadata"]


async def test_a_collection_is_deleted_by_selector(api: Api) -> None:
    for name, on in (("one", "yes"), ("two", "no"), ("three", "yes")):
        await api.created(CONFIG_MAPS, config_map(name, labels={"on": on}))
    assert (await api.delete(CONFIG_MAPS, labelSelector="on=yes")).names == ["one", "three"]
    assert (await api.get(CONFIG_MAPS, labelSelector="on")).names == ["two"]


async def test_a_deleted_namespace_is_emptied_first(widgets: Api) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    created = await widgets.created(NAMESPACES, namespace)
    assert created["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    path = f"{NAMESPACES}/team"
    await widgets.eventually(f"{path}/serviceaccounts/default", exists)
    held = "/apis/example.com/v1/namespaces/team/widgets"
    await widgets.created(held, widget("one", finalizers=["example.com/hold"]))
    await widgets.created(f"{path}/configmaps", config_map("one"))
    assert (await widgets.delete(path)).body["status"]["phase"] == "Terminating"
    await widgets.gone(f"{path}/configmaps/one")
    refused = await widgets.post(f"{path}/configmaps", config_map("late"))
    assert refused.code == 403 and "because it is being terminated" in refused.message
    assert exists(await widgets.get(path))
    await widgets.patch(f"{held}/one", {"metadata": {"finalizers": None}})
    await widgets.gone(path)


async def test_the_default_service_account_comes_back(api: Api) -> None:
    path = f"{NAMESPACES}/default/serviceaccounts/default"
    await api.delete(path)
    await api.eventually(path, exists)
    answer = await api.delete(f"{NAMESPACES}/default")
    assert answer.code == 403 and "may not be deleted" in answer.message


async def test_a_deleted_definition_takes_its_objects_along(widgets: Api) -> None:
    await widgets.created(WIDGETS, widget("one", finalizers=["example.com/hold"]))
    await widgets.created(WIDGETS, widget("two"))
    crd = f"{CRDS}/widgets.example.com"
    await widgets.delete(crd)
    await widgets.gone(f"{WIDGETS}/two")
    assert exists(await widgets.get(crd))
    await widgets.patch(f"{WIDGETS}/one", {"metadata": {"finalizers": None}})
    await widgets.gone(crd)
    assert (await widgets.get(WIDGETS)).code == 404
