"""On which nodes a template's Pods may be: judged as the embedded cluster's scheduler judges."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.scheduler.constraints import matches_node, untolerated_taint
from reconcilers.observed.suitable import MOST_REQUIREMENTS, Placement, others_of
from tests.counting import calls

JSON = dict[str, Any]
GPU = "nvidia.com/gpu"

keys = st.sampled_from(["pool", "zone", "cores"])
values = st.sampled_from(["", "a", "b", "2", "10"])
labels = st.dictionaries(keys, values)


def expressions(of: st.SearchStrategy[str], possible: st.SearchStrategy[str]) -> st.SearchStrategy[JSON]:
    several = st.fixed_dictionaries(
        {"key": of, "operator": st.sampled_from(["In", "NotIn"]), "values": st.lists(possible, min_size=1)}
    )
    number = st.fixed_dictionaries(
        {"key": of, "operator": st.sampled_from(["Gt", "Lt"]), "values": st.sampled_from([["1"], ["9"]])}
    )
    there = st.fixed_dictionaries({"key": of, "operator": st.sampled_from(["Exists", "DoesNotExist"])})
    return several | number | there


terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.lists(expressions(keys, values), max_size=2),
        "matchFields": st.lists(
            expressions(st.just("metadata.name"), st.sampled_from(["n", "m"])).filter(
                lambda each: each["operator"] in ("In", "NotIn")
            ),
            max_size=2,
        ),
    },
)
taints = st.fixed_dictionaries(
    {"key": keys, "effect": st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])},
    optional={"value": values},
)
tolerations = st.fixed_dictionaries(
    {},
    optional={
        "key": keys,
        "operator": st.just("Equal"),
        "value": values,
        "effect": st.sampled_from(["NoSchedule", "NoExecute"]),
    },
).filter(lambda each: "key" in each) | st.fixed_dictionaries(
    {"operator": st.just("Exists")},
    optional={"key": keys, "effect": st.sampled_from(["NoSchedule", "NoExecute"])},
)


@given(labels, labels, st.none() | st.lists(terms, min_size=1, max_size=3), st.lists(taints), st.data())
def test_a_node_is_suitable_if_the_scheduler_says_so(
    has: JSON, selector: JSON, required: list[JSON] | None, tainted: list[JSON], data: st.DataObject
) -> None:
    tolerated = data.draw(st.lists(tolerations))
    node = {"metadata": {"name": "n", "labels": has}, "spec": {"taints": tainted}}
    spec: JSON = {"containers": [{"name": "main"}], "nodeSelector": selector, "tolerations": tolerated}
    if required is not None:
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": required}}
        spec["affinity"] = {"nodeAffinity": affinity}
    expected = matches_node(spec, node) and untolerated_taint(tainted, tolerated) is None
    assert Placement({"spec": spec}).takes(node) is expected


@pytest.mark.parametrize("key", [GPU, "node.kubernetes.io/not-ready", "node.kubernetes.io/unschedulable"])
def test_taints_that_admission_lets_pods_bear_or_that_pass_are_none(key: str) -> None:
    node = {"metadata": {"name": "n"}, "spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}}
    container = {"name": "main", "resources": {"limits": {GPU: "8"}}}
    assert Placement({"spec": {"containers": [container]}}).takes(node)
    assert Placement({"spec": {"containers": [{"name": "main"}]}}).takes(node) is (key != GPU)


def test_sidecars_run_beside_the_first_container_and_other_init_containers_before_it() -> None:
    sidecar = {"name": "log", "restartPolicy": "Always"}
    spec = {"containers": [{"name": "main"}, {"name": "web"}], "initContainers": [{"name": "fetch"}, sidecar]}
    assert [each["name"] for each in others_of(spec)] == ["web", "log"]


@pytest.mark.parametrize(
    "expression",
    [
        {},
        {"key": "zone"},
        {"key": "zone", "operator": "Gt"},
        {"key": "zone", "operator": "In", "values": 5},
        {"key": ["zone"], "operator": "Exists"},
    ],
)
def test_what_the_crd_takes_and_no_pod_may_have_makes_no_node_suitable(expression: JSON) -> None:
    """A job that trains may be edited so; its next look is not to fail by it."""
    node = {"metadata": {"name": "n", "labels": {"zone": "1"}}}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert not Placement({"spec": {"containers": [{"name": "main"}], "affinity": affinity}}).takes(node)


@pytest.mark.parametrize(
    ("toleration", "is_borne"),
    [
        ({"key": "sla", "operator": "Gt", "value": "900"}, True),
        ({"key": "sla", "operator": "Gt", "value": "950"}, False),
        ({"key": "sla", "operator": "Lt", "value": "990"}, True),
        ({"key": "sla", "operator": "Lt", "value": "950"}, False),
        ({"key": "sla", "operator": None, "value": "950"}, True),
    ],
)
def test_a_taint_is_compared_with_a_number(toleration: JSON, is_borne: bool) -> None:
    taint = {"key": "sla", "value": "950", "effect": "NoSchedule"}
    node = {"metadata": {"name": "n"}, "spec": {"taints": [taint]}}
    template = {"spec": {"containers": [{"name": "main"}], "tolerations": [toleration]}}
    assert Placement(template).takes(node) is is_borne


def test_a_template_with_too_many_requirements_excludes_no_node_and_costs_no_more() -> None:
    node = {"metadata": {"name": "n"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}] * 9}}

    def placement(count: int) -> Placement:
        zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["x"] * count}]}] * count
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
        resources = {"limits": {f"a/{number}": "1" for number in range(32)}}
        containers = [{"name": "main", "resources": resources}] * count
        return Placement({"spec": {"containers": containers, "affinity": {"nodeAffinity": required}}})

    few, many = placement(7), placement(60)
    assert not few.takes(node) and many.takes(node)
    assert calls(lambda: few.takes(node)) < 3 * MOST_REQUIREMENTS > calls(lambda: many.takes(node))
