"""The scheduler's decision: what it may never do, and how it words what it cannot do."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localcluster.quantities import amounts, pod_requests
from localcluster.scheduler.constraints import is_ready, matches_node, tolerates
from localcluster.scheduler.decision import node_states, place

JSON = dict[str, Any]


def node(
    name: str = "node-0", *, ready: bool = True, taints: list[JSON] | None = None, **capacity: str
) -> JSON:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "10"} | {
        key.replace("gpu", "nvidia.com/gpu"): value for key, value in capacity.items()
    }
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"taints": taints or []},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def pod(
    name: str = "pod", *, labels: dict[str, str] | None = None, spec: JSON | None = None, **requests: str
) -> JSON:
    resources = {"requests": {key.replace("gpu", "nvidia.com/gpu"): value for key, value in requests.items()}}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels or {}},
        "spec": {"containers": [{"name": "main", "resources": resources}]} | (spec or {}),
    }


def schedule(pods: list[JSON], nodes: list[JSON]) -> dict[str, str | None]:
    states = node_states(nodes, [])
    placed: dict[str, str | None] = {}
    for each in pods:
        target = place(each, states).node
        placed[each["metadata"]["name"]] = target
        if target is not None:
            states[target].take(each)
    return placed


def affinity(*terms: JSON) -> JSON:
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


zones = st.sampled_from(["a", "b", "c"])
effects = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
taints = st.lists(st.fixed_dictionaries({"key": zones, "value": zones, "effect": effects}), max_size=2)
tolerations = st.lists(
    st.one_of(
        st.fixed_dictionaries({"key": zones, "operator": st.just("Exists")}),
        st.fixed_dictionaries(
            {"key": zones, "operator": st.just("Equal"), "value": zones, "effect": effects}
        ),
        st.just({"operator": "Exists"}),
    ),
    max_size=2,
)
expressions = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["zone", "size", "missing"]),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
        "values": st.lists(st.sampled_from(["a", "b", "1", "5"]), min_size=1, max_size=2),
    }
)


@st.composite
def clusters(draw: st.DrawFn) -> list[JSON]:
    nodes = []
    for index in range(draw(st.integers(0, 4))):
        made = node(
            f"node-{index}",
            ready=draw(st.booleans()),
            taints=draw(taints),
            cpu=f"{draw(st.integers(0, 4000))}m",
            memory=f"{draw(st.integers(0, 4))}Gi",
            pods=str(draw(st.integers(0, 4))),
            gpu=str(draw(st.integers(0, 2))),
        )
        made["metadata"]["labels"] |= {"zone": draw(zones), "size": str(draw(st.integers(0, 9)))}
        made["spec"]["unschedulable"] = draw(st.booleans())
        nodes.append(made)
    return nodes


@st.composite
def workloads(draw: st.DrawFn) -> list[JSON]:
    pods = []
    for index in range(draw(st.integers(1, 8))):
        spec: JSON = {"tolerations": draw(tolerations)}
        if draw(st.booleans()):
            spec["nodeSelector"] = {"zone": draw(zones)}
        if draw(st.booleans()):
            spec |= affinity({"matchExpressions": draw(st.lists(expressions, min_size=1, max_size=2))})
        if draw(st.booleans()):
            init = {"resources": {"requests": {"cpu": f"{draw(st.integers(0, 3000))}m"}}}
            spec["initContainers"] = [init]
        pods.append(
            pod(
                f"pod-{index}",
                spec=spec,
                cpu=f"{draw(st.integers(0, 2000))}m",
                gpu=str(draw(st.integers(0, 2))),
            )
        )
    return pods


@given(clusters(), workloads())
def test_no_node_is_ever_given_more_than_it_has(nodes: list[JSON], pods: list[JSON]) -> None:
    placed = schedule(pods, nodes)
    for each in nodes:
        allocatable = amounts(each["status"]["allocatable"])
        here = [p for p in pods if placed[p["metadata"]["name"]] == each["metadata"]["name"]]
        assert len(here) <= allocatable["pods"]
        for resource, available in allocatable.items():
            assert sum(pod_requests(p["spec"]).get(resource, 0) for p in here) <= available


@given(clusters(), workloads())
def test_every_constraint_is_respected(nodes: list[JSON], pods: list[JSON]) -> None:
    by_name = {each["metadata"]["name"]: each for each in nodes}
    for name, target in schedule(pods, nodes).items():
        if target is None:
            continue
        chosen = by_name[target]
        spec = next(p for p in pods if p["metadata"]["name"] == name)["spec"]
        assert is_ready(chosen)
        assert matches_node(spec, chosen)
        for taint in chosen["spec"]["taints"]:
            if taint["effect"] != "PreferNoSchedule":
                assert any(tolerates(toleration, taint) for toleration in spec["tolerations"])
        if chosen["spec"]["unschedulable"]:
            assert {"operator": "Exists"} in spec["tolerations"]


@given(clusters(), workloads())
def test_every_refusal_counts_every_node(nodes: list[JSON], pods: list[JSON]) -> None:
    states = node_states(nodes, [])
    for each in pods:
        placement = place(each, states)
        if placement.node is None and nodes:
            assert placement.message.startswith(f"0/{len(nodes)} nodes are available: ")
            counts = [int(part.split(" ", 1)[0]) for part in placement.message.split(": ", 1)[1].split(", ")]
            assert sum(counts) >= len(nodes)


def test_the_reasons_are_worded_like_kubernetes() -> None:
    tainted = [{"key": "gpu", "value": "broken", "effect": "NoSchedule"}]
    nodes = [node("node-0", cpu="1"), node("node-1", taints=tainted), node("node-2", taints=tainted)]
    placement = place(pod(cpu="2"), node_states(nodes, []))
    assert placement.message == (
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint {gpu: broken}."
    )


def test_pods_on_the_node_count_unless_finished() -> None:
    running = pod("running", cpu="3", spec={"nodeName": "node-0"})
    assert place(pod(cpu="2"), node_states([node()], [running])).node is None
    running["status"] = {"phase": "Succeeded"}
    assert place(pod(cpu="2"), node_states([node()], [running])).node == "node-0"


def test_a_pod_pinned_as_a_daemonset_s_gets_its_node_cordoned_tainted_and_with_its_gpus_or_none() -> None:
    mine = affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["sick"]}]})
    pinned = mine | {"tolerations": [{"operator": "Exists"}]}
    unhealthy = {"key": "elastic.iml.github.io/unhealthy", "value": "CheckFailed", "effect": "NoSchedule"}
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    sick = node("sick", taints=[unhealthy, cordon], gpu="2")
    sick["spec"]["unschedulable"] = True
    nodes = [node("well", gpu="2"), sick]
    assert place(pod(spec=mine, gpu="2"), node_states(nodes, [])).node is None
    assert place(pod(spec=pinned, gpu="2"), node_states(nodes, [])).node == "sick"
    in_use = pod("training", spec={"nodeName": "sick"}, gpu="1")
    placement = place(pod(spec=pinned, gpu="2"), node_states(nodes, [in_use]))
    assert placement.node is None and "1 Insufficient nvidia.com/gpu" in placement.message


def test_a_preferred_node_is_taken_although_others_are_emptier_and_done_without_where_there_is_none() -> None:
    elsewhere = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a"]}
    term = {"weight": 100, "preference": {"matchExpressions": [elsewhere]}}
    wish = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    busy = pod("busy", spec={"nodeSelector": {"kubernetes.io/hostname": "b"}}, cpu="2")
    picky = pod("picky", spec={"affinity": wish})
    assert schedule([busy, picky], [node("a"), node("b")])["picky"] == "b"
    assert schedule([picky], [node("a")])["picky"] == "a"


def test_an_init_container_that_needs_most_decides() -> None:
    spec = {
        "initContainers": [
            {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"name": "load", "resources": {"requests": {"cpu": "3"}}},
        ]
    }
    requests = pod_requests(pod(cpu="2", spec=spec)["spec"])
    assert requests == {"cpu": 4000, "pods": 1}
