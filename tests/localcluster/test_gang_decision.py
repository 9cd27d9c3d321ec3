"""Gangs in the scheduler's decision: all of the minimum at once or none, and nobody else held up by them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localcluster.scheduler.decision import node_states, place
from localcluster.scheduler.gangs import POD_GROUP_LABEL, decide, group_of
from localcluster.scheduler.pod_groups import status_of
from localcluster.scheduler.scheduler import awaits_node

from .test_scheduler_decision import node, pod

JSON = dict[str, Any]
CREATED = "2026-01-01T00:00:{:02}Z"


def group(name: str, minimum: int, *, created: int = 0, **spec: Any) -> JSON:
    metadata = {"name": name, "namespace": "default", "creationTimestamp": CREATED.format(created)}
    return {"metadata": metadata, "spec": {"minMember": minimum, **spec}}


def member(of: str, index: int, *, spec: JSON | None = None, created: int = 0, **requests: str) -> JSON:
    made = pod(f"{of}-{index}", labels={POD_GROUP_LABEL: of}, spec=spec, **requests)
    made["metadata"]["creationTimestamp"] = CREATED.format(created)
    return made


def gang(of: str, count: int, **kinds: Any) -> list[JSON]:
    return [member(of, index, **kinds) for index in range(count)]


def bound(made: JSON, where: str) -> JSON:
    made["spec"]["nodeName"] = where
    return made


def decided(
    waiting: list[JSON], groups: list[JSON], nodes: list[JSON], running: list[JSON] | None = None
) -> dict[str, tuple[str | None, str]]:
    by_key = {("default", each["metadata"]["name"]): each for each in groups}
    outcome = decide(waiting, by_key, node_states(nodes, running or []))
    return {d.pod["metadata"]["name"]: (d.placement.node, d.placement.message) for d in outcome}


def placed(outcome: dict[str, tuple[str | None, str]]) -> list[str]:
    return sorted(name for name, (where, _) in outcome.items() if where is not None)


def test_a_gang_of_four_waits_where_there_is_room_for_three_and_says_why() -> None:
    outcome = decided(gang("train", 4, cpu="4"), [group("train", 4)], [node(f"n{i}") for i in range(3)])
    assert placed(outcome) == []
    assert {why for _, why in outcome.values()} == {
        "PodGroup default/train needs 4 Pods with a node at once, 0 have one and 3 could get one: "
        "0/3 nodes are available: 3 Insufficient cpu."
    }


def test_a_gang_without_all_its_pods_waits_for_them() -> None:
    outcome = decided(gang("train", 2), [group("train", 3)], [node()])
    assert {why for _, why in outcome.values()} == {
        "PodGroup default/train needs 3 Pods at once, and some are still to come"
    }


def test_minimum_resources_must_be_free_or_the_gang_s_own() -> None:
    nodes = [node("n0"), node("n1")]
    asking = group("train", 2, minResources={"cpu": "8", "memory": "1Gi"})
    assert len(placed(decided(gang("train", 2, cpu="1"), [asking], nodes))) == 2
    other = bound(pod("other", cpu="1"), "n0")
    outcome = decided(gang("train", 2, cpu="1"), [asking], nodes, [other])
    assert outcome["train-0"] == (
        None,
        "PodGroup default/train needs more cpu than is free: its minResources say so",
    )
    own = [bound(member("train", 7, cpu="1"), "n0")]
    assert len(placed(decided(gang("train", 2, cpu="1"), [asking], nodes, own))) == 2


def test_of_two_gangs_with_room_for_one_the_one_with_priority_is_first() -> None:
    waiting = [*gang("old", 2, cpu="4"), *gang("urgent", 2, cpu="4", spec={"priority": 10})]
    groups = [group("old", 2, created=1), group("urgent", 2, created=9)]
    assert placed(decided(waiting, groups, [node("n0"), node("n1")])) == ["urgent-0", "urgent-1"]


def test_pods_of_a_second_scheduler_for_gangs_are_taken_and_those_of_an_unknown_one_left() -> None:
    assert awaits_node(pod(spec={"schedulerName": "scheduler-plugins-scheduler"}))
    assert awaits_node(pod(spec={"schedulerName": "default-scheduler"}))
    assert not awaits_node(pod(spec={"schedulerName": "volcano"}))


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[JSON], list[JSON], list[JSON], list[JSON]]:
    """Nodes, groups, Pods that wait, and Pods that run, on few CPUs."""
    nodes = [node(f"n{i}", cpu=str(draw(st.integers(0, 4)))) for i in range(draw(st.integers(0, 3)))]
    groups, waiting, running = [], [], []
    for number in range(draw(st.integers(0, 3))):
        name = f"g{number}"
        if draw(st.integers(0, 4)):
            groups.append(group(name, draw(st.integers(1, 5)), created=draw(st.integers(0, 3))))
        for index in range(draw(st.integers(0, 5))):
            spec = {"priority": draw(st.sampled_from([0, 0, 5]))}
            made = member(
                name, index, spec=spec, created=draw(st.integers(0, 3)), cpu=str(draw(st.integers(0, 2)))
            )
            if nodes and draw(st.integers(0, 3)) == 0:
                running.append(bound(made, draw(st.sampled_from(nodes))["metadata"]["name"]))
            else:
                waiting.append(made)
    for index in range(draw(st.integers(0, 4))):
        alone = pod(f"alone-{index}", cpu=str(draw(st.integers(0, 3))))
        alone["metadata"]["creationTimestamp"] = CREATED.format(draw(st.integers(0, 3)))
        waiting.append(alone)
    return nodes, groups, draw(st.permutations(waiting)), running


def members_of(name: str, names: list[str]) -> list[str]:
    return [each for each in names if each.startswith(f"{name}-")]


@given(situations())
def test_no_gang_is_ever_bound_in_part_below_its_minimum(
    situation: tuple[list[JSON], list[JSON], list[JSON], list[JSON]],
) -> None:
    nodes, groups, waiting, running = situation
    outcome = decided(waiting, groups, nodes, running)
    assert sorted(outcome) == sorted(each["metadata"]["name"] for each in waiting)
    known = {each["metadata"]["name"]: each["spec"]["minMember"] for each in groups}
    for name in ("g0", "g1", "g2"):
        new = members_of(name, placed(outcome))
        before = members_of(name, [each["metadata"]["name"] for each in running])
        assert not new or (name in known and len(before) + len(new) >= known[name])
    assert all(why for where, why in outcome.values() if where is None)


@given(situations())
def test_no_pod_waits_while_there_is_room_for_it_because_of_a_gang_that_does_not_fit(
    situation: tuple[list[JSON], list[JSON], list[JSON], list[JSON]],
) -> None:
    nodes, groups, waiting, running = situation
    outcome = decided(waiting, groups, nodes, running)
    left = [each for each in waiting if outcome[each["metadata"]["name"]][0] is None]
    now_running = [bound(each, where) for each in waiting if (where := outcome[each["metadata"]["name"]][0])]
    states = node_states(nodes, [*running, *now_running])
    assert not [each for each in left if group_of(each) is None and place(each, states).node is not None]
    assert placed(decided(left, groups, nodes, [*running, *now_running])) == []


@given(st.lists(st.integers(0, 4), max_size=4), st.integers(1, 6), st.integers(0, 8), st.integers(1, 2))
def test_a_gang_of_like_pods_is_bound_exactly_when_it_fits(
    cpus: list[int], minimum: int, count: int, each_cpu: int
) -> None:
    nodes = [node(f"n{i}", cpu=str(cpu)) for i, cpu in enumerate(cpus)]
    room = sum(cpu // each_cpu for cpu in cpus)
    outcome = decided(gang("g", count, cpu=str(each_cpu)), [group("g", minimum)], nodes)
    fits = min(room, count) >= minimum
    assert len(placed(outcome)) == (min(room, count) if fits else 0)


def phase(minimum: int, *phases: str, before: JSON | None = None) -> str:
    pods = [{"status": {"phase": each}} for each in phases]
    return str(status_of(group("g", minimum) | ({"status": before} if before else {}), pods)["phase"])


def test_the_phase_of_a_group() -> None:
    assert phase(2) == phase(2, "Running") == "Pending"
    assert phase(2, "Pending", "Pending") == phase(2, "Pending", "Running") == "Scheduling"
    assert phase(2, "Running", "Running", "Pending") == phase(2, "Running", "Succeeded") == "Running"
    assert phase(2, "Succeeded", "Succeeded") == "Finished"
    assert phase(2, "Running", "Failed") == "Failed"
    assert phase(2, "Running", "Running", before={"phase": "Failed"}) == "Failed"
    counted = status_of(group("g", 1), [{"status": {"phase": "Running"}}])
    assert counted == {"phase": "Running", "running": 1, "succeeded": 0, "failed": 0}
