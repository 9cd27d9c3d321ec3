"""Unknown fields, wrong types and broken bodies: refused, warned about or ignored, as the client asked."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import configmap, unschedulable_pod, widget
from .rawapi import MERGE_PATCH, Api, causes
from .resources import CONFIGMAPS, PODS, WIDGETS

pytestmark = pytest.mark.real

JSON = dict[str, Any]


def with_unknown(kind: str, namespace: str) -> tuple[Any, JSON, str]:
    """A resource, an object of it with a field nobody knows, and that field's path."""
    if kind == "Widget":
        return WIDGETS, widget(namespace, "w", {"bogus": 1}), "spec.bogus"
    if kind == "Pod":
        return PODS, unschedulable_pod(namespace, "w", bogus=1), "spec.bogus"
    return CONFIGMAPS, configmap(namespace, "w") | {"bogus": 1}, "bogus"


KINDS = pytest.mark.parametrize("kind", ["Widget", "Pod", "ConfigMap"])


@KINDS
async def test_strict_refuses_an_unknown_field(api: Api, namespace: str, kind: str) -> None:
    resource, obj, field = with_unknown(kind, namespace)
    reply = await api.create(resource, obj, fieldValidation="Strict")
    status = reply.refused(400, "BadRequest")
    assert f'strict decoding error: unknown field "{field}"' in status["message"]
    assert (await api.get(resource, namespace, "w")).status == 404


@KINDS
async def test_warn_accepts_and_warns(api: Api, namespace: str, kind: str) -> None:
    resource, obj, field = with_unknown(kind, namespace)
    reply = await api.create(resource, obj, fieldValidation="Warn")
    reply.expect(201)
    assert any(w.startswith("299 - ") and f'unknown field \\"{field}\\"' in w for w in reply.warnings)


@KINDS
async def test_ignore_accepts_in_silence(api: Api, namespace: str, kind: str) -> None:
    resource, obj, _ = with_unknown(kind, namespace)
    reply = await api.create(resource, obj, fieldValidation="Ignore")
    reply.expect(201)
    assert reply.warnings == ()


async def test_unknown_fields_are_warned_about_when_nothing_is_said(api: Api, namespace: str) -> None:
    reply = await api.create(WIDGETS, widget(namespace, "w", {"bogus": 1}))
    assert "bogus" not in reply.expect(201)["spec"]
    assert len(reply.warnings) == 1


async def test_every_unknown_field_is_named(api: Api, namespace: str) -> None:
    obj = widget(namespace, "w", {"bogus": 1, "limits": {"odd": "2"}})
    obj["status"] = {"strange": 3}
    status = (await api.create(WIDGETS, obj, fieldValidation="Strict")).refused(400, "BadRequest")
    for field in ("spec.bogus", "spec.limits.odd", "status.strange"):
        assert f'unknown field "{field}"' in status["message"]


async def test_unknown_fields_in_list_items_carry_their_index(api: Api, namespace: str) -> None:
    obj = widget(namespace, "w", {"parts": [{"name": "a"}, {"name": "b", "bogus": 1}]})
    status = (await api.create(WIDGETS, obj, fieldValidation="Strict")).refused(400, "BadRequest")
    assert 'unknown field "spec.parts[1].bogus"' in status["message"]


async def test_unknown_metadata_is_refused(api: Api, namespace: str) -> None:
    obj = widget(namespace, "w")
    obj["metadata"]["bogus"] = "x"
    status = (await api.create(WIDGETS, obj, fieldValidation="Strict")).refused(400, "BadRequest")
    assert 'unknown field "metadata.bogus"' in status["message"]


async def test_strict_applies_to_updates_and_patches(api: Api, make: Maker) -> None:
    made = await make.widget()
    made["spec"]["bogus"] = 1
    (await api.put(WIDGETS, made, fieldValidation="Strict")).refused(400, "BadRequest")
    patch = {"spec": {"bogus": 1}}
    reply = await api.patch(WIDGETS, make.namespace, "w", patch, fieldValidation="Strict")
    status = reply.expect(400, 422)
    assert 'unknown field "spec.bogus"' in status["message"]


async def test_fields_below_preserve_unknown_fields_are_known(api: Api, namespace: str) -> None:
    extra = {"anything": {"goes": [1, "two", None, {"three": 3.5}]}}
    reply = await api.create(WIDGETS, widget(namespace, "w", {"extra": extra}), fieldValidation="Strict")
    assert reply.expect(201)["spec"]["extra"] == extra


async def test_an_unknown_way_of_validating_is_refused(api: Api, namespace: str) -> None:
    status = (await api.create(WIDGETS, widget(namespace, "w"), fieldValidation="Bogus")).expect(422, 400)
    assert "fieldValidation" in status["message"]


async def test_a_wrong_type_in_a_custom_resource_names_its_path(api: Api, namespace: str) -> None:
    reply = await api.create(WIDGETS, widget(namespace, "w", {"size": "two"}))
    status = reply.refused(422, "Invalid")
    assert "spec.size" in causes(status)
    assert "must be of type integer" in status["message"]


async def test_a_wrong_type_in_a_built_in_is_a_bad_request(api: Api, namespace: str) -> None:
    (await api.create(CONFIGMAPS, configmap(namespace, "c") | {"data": {"a": 1}})).refused(400, "BadRequest")
    pod = unschedulable_pod(namespace, "p", terminationGracePeriodSeconds="soon")
    (await api.create(PODS, pod)).refused(400, "BadRequest")


@pytest.mark.parametrize("raw", [b"{not json", b"[]", b'"text"'])
async def test_a_body_that_is_no_object_is_a_bad_request(api: Api, namespace: str, raw: bytes) -> None:
    reply = await api.call("POST", WIDGETS.path(namespace), raw=raw)
    reply.refused(400, "BadRequest")


@pytest.mark.parametrize(
    "change", [{"kind": "Gadget"}, {"apiVersion": "conformance.dlr.dev/v9"}, {"apiVersion": "v1"}]
)
async def test_an_object_of_another_kind_is_refused(api: Api, namespace: str, change: JSON) -> None:
    (await api.create(WIDGETS, widget(namespace, "w") | change)).expect(400, 422)


async def test_name_and_namespace_must_be_those_of_the_address(api: Api, make: Maker) -> None:
    other = widget("elsewhere", "w")
    reply = await api.call("POST", WIDGETS.path(make.namespace), body=other)
    assert "namespace" in reply.refused(400, "BadRequest")["message"]
    made = await make.widget()
    reply = await api.call("PUT", WIDGETS.path(make.namespace, "another"), body=made)
    assert "does not match the name on the URL" in reply.refused(400, "BadRequest")["message"]


async def test_an_unknown_content_type_is_unsupported(api: Api, namespace: str) -> None:
    reply = await api.call("POST", WIDGETS.path(namespace), raw=b"x", content_type="text/plain")
    reply.refused(415, "UnsupportedMediaType")


async def test_an_unknown_accept_is_not_acceptable(api: Api, namespace: str) -> None:
    reply = await api.call("GET", WIDGETS.path(namespace), accept="application/x-bogus")
    assert reply.status == 406


@pytest.mark.parametrize(("method", "name"), [("PUT", ""), ("POST", "c")])
async def test_a_method_that_does_not_fit_is_not_allowed(
    api: Api, make: Maker, method: str, name: str
) -> None:
    obj = await make.configmap("c")
    reply = await api.call(method, CONFIGMAPS.path(make.namespace, name), body=obj)
    reply.refused(405, "MethodNotAllowed")


async def test_custom_kinds_take_methods_as_they_come(api: Api, make: Maker) -> None:
    await make.widget()
    obj = widget(make.namespace, "w")
    (await api.call("PUT", WIDGETS.path(make.namespace), body=obj)).refused(400, "BadRequest")
    (await api.call("POST", WIDGETS.path(make.namespace, "w"), body=obj)).refused(409, "AlreadyExists")


async def test_kubectl_apply_refuses_an_unknown_field(kubectl: Kubectl, namespace: str) -> None:
    bad = widget(namespace, "w", {"bogus": 1})
    said = await kubectl.refused("apply", "-f", "-", stdin=bad)
    assert 'unknown field "spec.bogus"' in said
    accepted = await kubectl.run("apply", "--validate=warn", "-f", "-", stdin=bad)
    assert 'Warning: unknown field "spec.bogus"' in accepted.stderr
    assert "created" in accepted.stdout
    again = await kubectl.run("apply", "--validate=ignore", "-f", "-", stdin=bad)
    assert "Warning" not in again.stderr


async def test_kubectl_names_the_path_of_a_wrong_value(kubectl: Kubectl, namespace: str) -> None:
    said = await kubectl.refused("apply", "-f", "-", stdin=widget(namespace, "w", {"size": 0}))
    assert f'The {WIDGETS.kind} "w" is invalid' in said
    assert "spec.size" in said


async def test_kubectl_create_of_a_pod_without_containers_is_refused(
    kubectl: Kubectl, namespace: str
) -> None:
    bad = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}}
    said = await kubectl.refused("create", "-f", "-", namespace=namespace, stdin=bad)
    assert "spec.containers: Required value" in said


async def test_merge_patch_with_a_wrong_type_leaves_the_object_alone(api: Api, make: Maker) -> None:
    made = await make.widget()
    reply = await api.patch(WIDGETS, make.namespace, "w", {"spec": {"size": "big"}}, content_type=MERGE_PATCH)
    reply.refused(422, "Invalid")
    now = (await api.get(WIDGETS, make.namespace, "w")).expect(200)
    assert now["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
