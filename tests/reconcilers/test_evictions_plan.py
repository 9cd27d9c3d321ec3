"""Which announcements count, and what is asked for by them."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crds import names
from crds.elasticjob import ElasticJob
from crds.elasticworker import ElasticWorker
from reconcilers.evictions.plan import (
    FEW_AT_ONCE,
    EvictionNotice,
    event_of,
    held_seconds,
    lapse_of,
    request_of,
)
from reconcilers.observed.announced import announcement
from reconcilers.observed.slots import slots_of
from reconcilers.scale.request import is_merged
from reconcilers.scale.rolling import Freshness
from reconcilers.scale.uptake import take_up, with_sources
from tests.reconcilers.build import NOW, job, worker

TAINT = {"effect": "NoSchedule"}


def node(taints: Any = (), conditions: Any = (), **spec: Any) -> dict[str, Any]:
    spec |= {"taints": [TAINT | {"key": key} for key in taints]}
    return {"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": list(conditions)}}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (node(unschedulable=True), "is cordoned"),
        (node(["node.kubernetes.io/unschedulable"]), "is cordoned"),
        (node(["karpenter.sh/disrupted"]), "has the taint karpenter.sh/disrupted"),
        (
            node(["aws-node-termination-handler/scheduled-maintenance"]),
            "has the taint aws-node-termination-handler/scheduled-maintenance",
        ),
        (
            node(["cloud.google.com/impending-node-termination"]),
            "has the taint cloud.google.com/impending-node-termination",
        ),
        (
            node(conditions=[{"type": "DrainInProgress", "status": "True"}]),
            "has the condition DrainInProgress",
        ),
        (node(conditions=[{"type": "DrainInProgress", "status": "False"}]), ""),
        (node(["nvidia.com/gpu", "DeletionCandidateOfClusterAutoscaler"]), ""),
        (node([names.TAINT_UNHEALTHY]), ""),
        (node([names.TAINT_UNHEALTHY], unschedulable=True), "is cordoned"),
        (node(), ""),
        ({"metadata": {"name": "n"}}, ""),
    ],
)
def test_what_announces_an_eviction(found: dict[str, Any], words: str) -> None:
    assert announcement(found) == words


def test_a_taint_that_evicts_at_once_or_only_makes_others_preferred_announces_nothing() -> None:
    for effect in ("NoExecute", "PreferNoSchedule"):
        found = node()
        found["spec"]["taints"] = [{"key": "karpenter.sh/disrupted", "effect": effect}]
        assert not announcement(found)


def training(replicas: int, patience: int = 120) -> ElasticJob:
    world = {"round": 1, "phase": "Formed", "members": [], "incarnations": []}
    policy = {"evictionPatienceSeconds": patience}
    return job(replicas=replicas, elasticPolicy=policy, status={"phase": "Running", "rendezvous": world})


def running(index: int) -> ElasticWorker:
    return worker(index, nodeName=f"node-{index}")


def notices(indices: Any, age_seconds: float | None = 0.0) -> list[EvictionNotice]:
    return [
        EvictionNotice(running(index), f"node-{index}", "is cordoned", age_seconds)
        for index in sorted(indices)
    ]


def written_into(of: ElasticJob, request: Any) -> ElasticJob:
    annotations = {names.ANNOTATION_SCALE: request.to_text()}
    return of.model_copy(update={"metadata": of.metadata.model_copy(update={"annotations": annotations})})


def merged(of: ElasticJob, request: Any) -> ElasticJob:
    """After the job's reconciler has taken it up."""
    after, taken, _ = take_up(written_into(of, request), Freshness(), (), NOW)
    assert taken == request
    return after


@given(
    replicas=st.integers(1, 400),
    chosen=st.lists(st.sets(st.integers(0, 400)), min_size=1, max_size=4),
    others=st.sets(st.integers(0, 400), max_size=3),
)
def test_what_is_asked_is_moved_at_once_within_the_bound_and_asked_but_once(
    replicas: int, chosen: list[set[int]], others: set[int]
) -> None:
    """Through any sequence of announcements: a fixed point each, never too many at once, a move of somebody else's
    goes on until ours is over, and without announcements none of ours is left."""
    now = with_sources(training(replicas), frozenset(others))
    foreign = set(slots_of(now, "worker").moves)
    for announced in [*chosen, set()]:
        present = announced.intersection(range(replicas))
        request = request_of(now, notices(present), running)
        if request is not None:
            assert not is_merged(written_into(now, request)), "as new, whatever was asked before"
            now = merged(now, request)
        moves = set(slots_of(now, "worker").moves)
        assert moves <= present | foreign
        assert len(moves - foreign) <= min((replicas + 1) // 2, max(FEW_AT_ONCE, replicas // 10))
        assert moves or not present or foreign
        assert request_of(now, notices(present), running) is None
    assert set(slots_of(now, "worker").moves) <= foreign


def test_a_target_that_has_a_node_goes_on_when_its_source_is_evicted() -> None:
    first = request_of(training(3), notices([1]), running)
    now = merged(training(3), first)
    (target,) = slots_of(now, "worker").moves.values()
    evicted = worker(1, phase="Pending")

    def find(has_node: bool) -> Any:
        waiting = worker(target, phase="Pending", nodeName="node-9" if has_node else None)
        return lambda index: waiting if index == target else evicted

    assert request_of(now, [], find(has_node=True)) is None
    ended = request_of(now, [], find(has_node=False))
    assert ended is not None and not slots_of(merged(now, ended), "worker").moves


def test_the_oldest_announcement_says_how_long_all_are_held() -> None:
    both = [*notices([0], 100.0), *notices([1], 10.0)]
    assert held_seconds(training(3), both) == 20.0
    assert held_seconds(training(3), [*both, *notices([2], 121.0)]) == 0.0
    assert held_seconds(training(3), []) == inf, "a drain evicts before anybody could begin to hold it"
    assert held_seconds(job(replicas=3), []) == 0.0, "who has not trained loses nothing"
    assert held_seconds(training(3, patience=0), notices([0])) == 0.0


def test_a_device_that_takes_no_new_pods_evicts_nobody_so_evictions_stay_held() -> None:
    device = notices([0], None)
    assert held_seconds(training(3), device) == inf
    assert held_seconds(training(3), [*device, *notices([1], 20.0)]) == 100.0
    assert lapse_of(training(3), device, running) is None
    late = lapse_of(training(3), [*device, *notices([1], 120.0)], running)
    assert late is not None and late.message.startswith("node-1 is cordoned: worker 1 is not replaced")
    request = request_of(training(3), device, running)
    assert request is not None and event_of(training(3), request, device).message == (
        "node-0 is cordoned: worker 0 must leave, and another elsewhere replaces it first"
    )


def test_what_is_not_held_any_more_is_reported_with_the_reason() -> None:
    now = merged(training(3), request_of(training(3), notices([1]), running))
    full = {
        "type": "Scheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
    }
    full |= {"lastTransitionTime": NOW}
    waiting = worker(3, phase="Pending", conditions=[full])
    assert lapse_of(now, notices([1], 119.0), lambda _: waiting) is None
    event = lapse_of(now, notices([1], 120.0), lambda _: waiting)
    assert event is not None and event.message == (
        "node-1 is cordoned: worker 1 is not replaced within 120 s (0/3 nodes are available); evictions wait no "
        "longer, and the job goes on after them if its minReplicas allow that. Make room, or raise "
        "elasticPolicy.evictionPatienceSeconds"
    )
