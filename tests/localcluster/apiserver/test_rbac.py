"""What a rule of a Role grants, and what binds whom."""

from __future__ import annotations

import pytest

from localcluster.apiserver.authentication import User
from localcluster.apiserver.rbac import (
    Attributes,
    binds,
    rule_allows,
    rule_allows_path,
    rule_covers,
    single_rules,
)


def rule(groups: str, resources: str, verbs: str, names: str = "") -> dict[str, list[str]]:
    granted = {"apiGroups": groups.split(","), "resources": resources.split(","), "verbs": verbs.split(",")}
    return granted | ({"resourceNames": names.split(",")} if names else {})


LIST = Attributes("list", "", "pods", namespace="default")
LOG = Attributes("get", "", "pods", "log", "default", "one")


@pytest.mark.parametrize(
    ("granted", "wanted", "allowed"),
    [
        (rule("", "pods", "list"), LIST, True),
        (rule("*", "*", "*"), LOG, True),
        (rule("", "pods", "get"), LIST, False),
        (rule("", "pods", "list", "one"), LIST, False),
        (rule("", "pods", "get"), LOG, False),
        (rule("", "pods/log", "get", "one"), LOG, True),
        (rule("", "*/log", "get"), LOG, True),
        (rule("", "pods/log", "get", "two"), LOG, False),
        ({"verbs": ["*"], "nonResourceURLs": ["*"]}, LIST, False),
    ],
)
def test_a_rule_grants_its_verbs_on_its_resources_and_names(granted, wanted, allowed) -> None:
    assert rule_allows(granted, wanted) is allowed


def test_a_rule_grants_paths() -> None:
    granted = {"verbs": ["get"], "nonResourceURLs": ["/metrics", "/debug/*"]}
    paths = ("/metrics", "/metrics/", "/debug/x", "/debug")
    assert [rule_allows_path(granted, "get", path) for path in paths] == [True, False, True, False]
    assert not rule_allows_path(granted, "post", "/metrics")


def test_a_rule_is_covered_by_rules_that_grant_its_parts() -> None:
    held = [rule("", "pods", "get", name) for name in ("a", "b")]
    assert all(any(rule_covers(h, one) for h in held) for one in single_rules(rule("", "pods", "get", "a,b")))
    assert not any(rule_covers(h, rule("", "pods", "get")) for h in held)
    assert rule_covers(rule("*", "*", "*"), rule("apps", "deployments/scale", "patch", "x"))


def test_a_binding_names_users_groups_and_accounts() -> None:
    def binding(**subject: str) -> dict[str, object]:
        return {"metadata": {"namespace": "default"}, "subjects": [subject]}

    bot = User("system:serviceaccount:default:bot", groups=("system:serviceaccounts",))
    assert binds(binding(kind="ServiceAccount", name="bot", namespace="default"), bot)
    assert binds(binding(kind="Group", name="system:serviceaccounts"), bot)
    assert binds(binding(kind="User", name=bot.name), bot)
    assert not binds(binding(kind="ServiceAccount", name="bot", namespace="other"), bot)
    assert not binds(binding(kind="Group", name="others"), bot)
