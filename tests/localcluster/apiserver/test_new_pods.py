"""What a new Pod gets beyond its schema's defaults."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.apiserver.pods import completed, qos_class


def first(**container: Any) -> dict[str, Any]:
    return completed({"spec": {"containers": [container]}}, None)["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:1", "IfNotPresent"),
        ("reg:5000/a", "Always"),
        ("a@sha256:b", "IfNotPresent"),
    ],
)
def test_the_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    assert first(image=image)["imagePullPolicy"] == policy


def test_limits_are_requests_where_none_are_given() -> None:
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    assert first(resources=resources)["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


def test_quality_of_service_classes() -> None:
    def spec(*resources: dict[str, Any]) -> dict[str, Any]:
        return {"containers": [{"name": "c", "resources": each} for each in resources]}

    full = {"cpu": "1", "memory": "1Gi"}
    assert qos_class(spec({}, {})) == "BestEffort"
    assert qos_class(spec({"limits": full, "requests": full}, {"limits": full})) == "Guaranteed"
    assert qos_class(spec({"limits": full}, {})) == "Burstable"
