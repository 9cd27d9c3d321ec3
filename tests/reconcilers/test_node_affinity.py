"""Whatever a template says of nodes, what we add only ever takes nodes away."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localcluster.scheduler.constraints import matches_node, preference
from reconcilers.observed.builder import REQUIRED, never_on, only_on, rather_not_on

NODES = [
    {
        "metadata": {
            "name": f"node-{index}",
            "labels": {
                "kubernetes.io/hostname": f"host-{index}",
                "zone": "ab"[index % 2],
                "size": str(index),
            },
        }
    }
    for index in range(4)
]
NAMES = [node["metadata"]["name"] for node in NODES]

names = st.sampled_from(NAMES)
expressions = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["zone", "size", "kubernetes.io/hostname", "missing"]),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
        "values": st.lists(st.sampled_from(["a", "b", "1", "2", "host-3"]), min_size=1, max_size=2),
    }
)
fields = st.fixed_dictionaries(
    {
        "key": st.just("metadata.name"),
        "operator": st.sampled_from(["In", "NotIn"]),
        "values": st.lists(names, min_size=1, max_size=1),
    }
)
terms = st.fixed_dictionaries(
    {},
    optional={
        "matchExpressions": st.none() | st.lists(expressions, max_size=2),
        "matchFields": st.none() | st.lists(fields, max_size=2),
    },
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "nodeSelector": st.dictionaries(st.just("zone"), st.sampled_from("ab")),
        "affinity": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "podAffinity": st.just({}),
                "nodeAffinity": st.none()
                | st.fixed_dictionaries(
                    {},
                    optional={
                        REQUIRED: st.fixed_dictionaries(
                            {"nodeSelectorTerms": st.lists(terms, min_size=1, max_size=3)}
                        ),
                        "preferredDuringSchedulingIgnoredDuringExecution": st.lists(
                            st.fixed_dictionaries({"weight": st.integers(1, 100), "preference": terms}),
                            max_size=2,
                        ),
                    },
                ),
            },
        ),
    },
)


def admitted(spec: dict[str, Any]) -> set[str]:
    return {node["metadata"]["name"] for node in NODES if matches_node(spec, node)}


@given(specs, st.lists(names, unique=True))
def test_faulty_nodes_are_never_admitted_and_all_others_as_before(
    spec: dict[str, Any], faulty: list[str]
) -> None:
    before = admitted(spec)
    never_on(spec, faulty)
    assert admitted(spec) == before - set(faulty)


@given(specs, names)
def test_a_pin_leaves_the_one_node_and_that_only_if_the_template_admits_it(
    spec: dict[str, Any], node: str
) -> None:
    before = admitted(spec)
    only_on(spec, node)
    assert admitted(spec) == before & {node}


@given(specs, st.lists(names, unique=True))
def test_avoided_nodes_stay_admitted_and_come_last_where_the_template_has_no_wishes(
    spec: dict[str, Any], avoided: list[str]
) -> None:
    before = copy.deepcopy(spec)
    rather_not_on(spec, avoided)
    assert admitted(spec) == admitted(before)
    for node in NODES:
        gained = preference(spec, node) - preference(before, node)
        assert gained == (100 if avoided and node["metadata"]["name"] not in avoided else 0)


@given(specs, st.lists(names, unique=True), names)
def test_a_field_gets_one_value_as_kubernetes_wants_it(
    spec: dict[str, Any], nodes: list[str], node: str
) -> None:
    never_on(spec, nodes)
    rather_not_on(spec, nodes)
    only_on(spec, node)
    affinity = spec["affinity"]["nodeAffinity"]
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    every = [*affinity[REQUIRED]["nodeSelectorTerms"], *(term["preference"] for term in preferred)]
    assert all(len(each["values"]) == 1 for term in every for each in term.get("matchFields") or ())
