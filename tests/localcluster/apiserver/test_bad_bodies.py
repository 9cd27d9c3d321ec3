"""Whatever a client sends, it is told what is wrong with it: no body makes the server itself fail."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.localcluster.apiserver.api import (
    CONFIG_MAPS,
    CRDS,
    MERGE,
    PODS,
    STRATEGIC,
    WIDGETS,
    Api,
    config_map,
    pod,
    widget,
    widget_definition,
)

pytestmark = pytest.mark.real

ODD_VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, "", "x", "a" * 300, 10**15),
    *([], {}, [None], {"a": None}, [[]], {"name": "x"}, [{"name": "x"}], [1], ["x"]),
]
RULES = [{"apiGroups": ["x"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["y"]}]
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"

VALID: list[tuple[str, dict[str, Any]]] = [
    (
        PODS,
        pod(
            "one",
            labels={"a": "b"},
            volumes=[{"name": "v", "emptyDir": {}}],
            tolerations=[{"key": "a", "operator": "Exists"}],
            priorityClassName="system-node-critical",
        ),
    ),
    (CONFIG_MAPS, config_map("one", labels={"a": "b"}, finalizers=["a/b"], annotations={"c": "d"})),
    (CRDS, widget_definition()),
    (WIDGETS, {**widget("one", {"size": 3, "replicas": 2}), "status": {"phase": "Up"}}),
    (
        f"{RBAC}/roles",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "one"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
        },
    ),
    (
        f"{ADMISSION}/validatingadmissionpolicies",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "one"},
            "spec": {
                "failurePolicy": "Ignore",
                "matchConstraints": {"resourceRules": RULES, "objectSelector": {"matchLabels": {"a": "b"}}},
                "variables": [{"name": "v", "expression": "1"}],
                "matchConditions": [{"name": "n", "expression": "true"}],
                "validations": [{"expression": "true", "message": "m"}],
            },
        },
    ),
    (
        f"{ADMISSION}/validatingadmissionpolicybindings",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": "one"},
            "spec": {"policyName": "one", "validationActions": ["Warn"]},
        },
    ),
    (
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "one"}, "spec": {"finalizers": ["x"]}},
    ),
    (
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        {"spec": {"expirationSeconds": 3600, "boundObjectRef": {"kind": "Pod", "name": "one", "uid": "x"}}},
    ),
    (f"{PODS}/one/binding", {"metadata": {"name": "one"}, "target": {"kind": "Node", "name": "node-0"}}),
    (f"{PODS}/one/eviction", {"deleteOptions": {"gracePeriodSeconds": 3, "preconditions": {"uid": "x"}}}),
]
DELETE_OPTIONS = {"gracePeriodSeconds": 1, "propagationPolicy": "Orphan", "preconditions": {"uid": "x"}}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in entries:
        yield from places(child, (*path, key))


def spoiled(body: Any, random_source: random.Random) -> Any:
    """The body with one part missing or of another shape."""
    copied = copy.deepcopy(body)
    *parents, last = random_source.choice(list(places(copied)))
    part = copied
    for key in parents:
        part = part[key]
    if random_source.random() < 0.2:
        del part[last]
    else:
        part[last] = copy.deepcopy(random_source.choice(ODD_VALUES))
    return copied


@pytest.mark.parametrize("seed", range(4))
async def test_no_body_makes_the_server_fail(widgets: Api, seed: int) -> None:
    source = random.Random(seed)
    for _ in range(6):
        for path, body in VALID:
            answers = [await widgets.post(path, spoiled(body, source))]
            if "kind" in body:
                one = f"{path}/{body['metadata']['name']}"
                for content_type in (MERGE, STRATEGIC):
                    answers.append(await widgets.patch(one, spoiled(body, source), content_type))
                answers.append(await widgets.put(one, spoiled(body, source)))
                answers.append(await widgets.get(path, accept="application/json;as=Table;v=v1;g=meta.k8s.io"))
                if path != CRDS:
                    answers.append(await widgets.delete(one, spoiled(DELETE_OPTIONS, source)))
            failures = [answer.body for answer in answers if answer.code >= 500]
            assert not failures
