"""Unknown fields, wrong types and broken bodies: refused, warned about or ignored, as the client asked."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Maker
from .kubectl import Kubectl
from .objects import configmap, unschedulable_pod, widget
from .rawapi import Api
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
async def test_warn_accepts_and_warns(api: Api, namespace: str, kind: str) -> None:
    resource, obj, field = with_unknown(kind, namespace)
    reply = await api.create(resource, obj, fieldValidation="Warn")
    reply.expect(201)
    assert any(w.startswith("299 - ") and f'unknown field \\"{field}\\"' in w for w in reply.warnings)


async def test_every_unknown_field_is_named(api: Api, namespace: str) -> None:
    obj = widget(namespace, "w", {"bogus": 1, "limits": {"odd": "2"}})
    obj["status"] = {"strange": 3}
    status = (await api.create(WIDGETS, obj, fieldValidation="Strict")).refused(400, "BadRequest")
    for field in ("spec.bogus", "spec.limits.odd", "status.strange"):
        assert f'unknown field "{field}"' in status["message"]


async def test_strict_applies_to_updates_and_patches(api: Api, make: Maker) -> None:
    made = await make.widget()
    made["spec"]["bogus"] = 1
    (await api.put(WIDGETS, made, fieldValidation="Strict")).refused(400, "BadRequest")
    patch = {"spec": {"bogus": 1}}
    reply = await api.patch(WIDGETS, make.namespace, "w", patch, fieldValidation="Strict")
    status = reply.expect(400, 422)
    assert 'unknown field "spec.bogus"' in status["message"]


async def test_a_wrong_type_in_a_built_in_is_a_bad_request(api: Api, namespace: str) -> None:
    (await api.create(CONFIGMAPS, configmap(namespace, "c") | {"data": {"a": 1}})).refused(400, "BadRequest")
    pod = unschedulable_pod(namespace, "p", terminationGracePeriodSeconds="soon")
    (await api.create(PODS, pod)).refused(400, "BadRequest")


async def test_kubectl_apply_refuses_an_unknown_field(kubectl: Kubectl, namespace: str) -> None:
    bad = widget(namespace, "w", {"bogus": 1})
    said = await kubectl.refused("apply", "-f", "-", stdin=bad)
    assert 'unknown field "spec.bogus"' in said
    accepted = await kubectl.run("apply", "--validate=warn", "-f", "-", stdin=bad)
    assert 'Warning: unknown field "spec.bogus"' in accepted.stderr
    assert "created" in accepted.stdout
    again = await kubectl.run("apply", "--validate=ignore", "-f", "-", stdin=bad)
    assert "Warning" not in again.stderr
