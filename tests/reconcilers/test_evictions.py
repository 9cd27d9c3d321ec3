"""Announced evictions, played by all reconcilers: the worker is replaced first, and nothing is lost."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest

from controller.resources import NODES, PODDISRUPTIONBUDGETS, PODS
from crds import names
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.reconcilers.api import Api
from tests.reconcilers.cluster_model import lose_node
from tests.reconcilers.life import (
    Chapter,
    Phase,
    Run,
    beginning,
    edit,
    lose_pod,
    submit,
    submit_roles,
    undisturbed,
)
from tests.reconcilers.outcome import differences, end_state, unsound, worlds
from tests.reconcilers.process import Lag

PATIENCE_SECONDS = 30
KARPENTER = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
POLICY = {"lastCallSeconds": 5, "shrinkAfterSeconds": 20, "heartbeatTimeoutSeconds": 30}


def cordon(api: Api, *nodes: int, on: bool = True) -> None:
    for number in nodes:
        api.patch(NODES, f"node-{number}", {"spec": {"unschedulable": on or None}})


def taint(api: Api, *nodes: int, **taint: str) -> None:
    for number in nodes:
        api.patch(NODES, f"node-{number}", {"spec": {"taints": [KARPENTER | taint]}})


def plan_maintenance(api: Api, number: int) -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": "MaintenancePlanned", "status": "True"}]
    api.patch(NODES, f"node-{number}", {"status": {"conditions": conditions}}, "status")


def training(patience: int = PATIENCE_SECONDS, **spec: Any) -> Run:
    """A job of three workers that trains on the first three of six nodes."""
    api = beginning()
    submit(api, elasticPolicy=POLICY | {"evictionPatienceSeconds": patience}, **spec)
    return settled(Run(api))


def settled(run: Run, **more: Any) -> Run:
    after = Run(run.api, process=run.process, **more)
    asyncio.run(after.settle())
    assert after.errors == []
    return after


def status(api: Api) -> Any:
    return api.get(ELASTICJOBS, "j")["status"]


def world(api: Api) -> tuple[int, str]:
    found = status(api)["rendezvous"]
    assert found["phase"] == "Formed"
    return found["round"], found["members"]


def budgets(api: Api) -> list[int]:
    """Every minAvailable in turn."""
    found = [
        entry.obj["spec"]["minAvailable"] for entry in api.log[PODDISRUPTIONBUDGETS] if not entry.deleted
    ]
    return [each for number, each in enumerate(found) if number == 0 or found[number - 1] != each]


def nodes(api: Api) -> set[str]:
    """The nodes of the job's Pods."""
    return {pod["spec"].get("nodeName", "") for pod in api.list(PODS)}


def events(api: Api, reason: str) -> list[str]:
    return [event.message for event in api.events if event.reason == reason]


@pytest.mark.parametrize(
    "announce", [lambda api: cordon(api, 1), lambda api: taint(api, 1), lambda api: plan_maintenance(api, 1)]
)
def test_an_announced_eviction_moves_the_worker_first_and_no_failure_is_counted(announce: Any) -> None:
    run = training()
    announce(run.api)
    api = settled(run).api
    assert world(api) == (2, "0,2-3")
    assert "node-1" not in nodes(api) and len(api.list(PODS)) == 3
    found = status(api)
    assert not found.get("lastFailure") and not found.get("failures") and not found.get("restarts")
    assert events(api, "WorldBroken") == []
    (message,) = events(api, "EvictionAnnounced")
    assert message.endswith(
        "worker 1 must leave, and another elsewhere replaces it first; evictions wait for that, 30 s at most"
    )
    assert events(api, "EvictionsNotHeld") == []


def test_a_job_that_can_spare_nobody_has_a_budget_until_its_patience_is_over() -> None:
    run = training(replicaSpecs={"worker": beginning_worker(minReplicas=3)})
    cordon(run.api, 1)
    run = settled(run)
    assert world(run.api) == (2, "0,2-3") and budgets(run.api) == [6]
    cordon(run.api, *range(6))
    run = settled(run)
    assert not run.api.list(PODDISRUPTIONBUDGETS), "no drain is held longer"


def beginning_worker(**more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "x"}
    return {"replicas": 3, "template": {"spec": {"containers": [container]}}} | more


def test_without_room_evictions_wait_for_the_patience_of_the_job_and_then_go_as_ever() -> None:
    run = training()
    cordon(run.api, *range(6))
    before = run.api.seconds
    run = settled(run)
    api = run.api
    assert world(api) == (1, "0-2"), "all train on"
    assert budgets(api) == [2, 6, 2]
    (message,) = events(api, "EvictionsNotHeld")
    assert "workers 0, 1, 2 are not replaced within 30 s" in message and "evictionPatienceSeconds" in message
    assert api.seconds - before < 3 * PATIENCE_SECONDS
    lose_pod(api, 1)
    api = settled(run).api
    assert world(api) == (2, "0,2")
    waiting = [pod["metadata"]["name"] for pod in api.list(PODS) if "nodeName" not in pod["spec"]]
    assert [name for name in waiting if name.startswith("j-worker-1-")] == ["j-worker-1-2"]
    assert len(waiting) == 3, "one for worker 1, and the targets of the two who are still under notice"


def test_a_node_that_comes_back_ends_the_move() -> None:
    run = training()
    cordon(run.api, *range(6))
    run = settled(run)
    assert status(run.api)["migrations"]
    cordon(run.api, *range(6), on=False)
    api = settled(run).api
    assert world(api) == (1, "0-2") and not status(api).get("migrations")
    assert len(api.list(ELASTICWORKERS)) == 3 and nodes(api) == {"node-0", "node-1", "node-2"}
    assert len(events(api, "EvictionOver")) == 1
    cordon(run.api, *range(6))
    assert budgets(settled(run).api) == [2, 6, 2, 6, 2], "a second cordon is held back as long as the first"


def test_a_whole_pool_that_is_drained_is_left_half_by_half_so_that_some_keep_the_state() -> None:
    run = training()
    cordon(run.api, 0, 1, 2)
    api = settled(run).api
    assert world(api) == (3, "3-5")
    assert nodes(api) == {"node-3", "node-4", "node-5"}
    assert [members for _, _, members, _ in worlds(api)] == ["0-2", "2-4", "3-5"]
    assert budgets(api) == [2, 6], "held all the while"


def test_who_tolerates_the_announcement_is_moved_once() -> None:
    """The taints keep nobody away here, as where a template tolerates everything."""
    run = training()
    taint(run.api, *range(6))
    run = settled(settled(run))
    assert world(run.api) == (3, "3-5")
    assert budgets(run.api) == [2, 6]


def test_rank_0_and_a_standby_are_moved_too() -> None:
    worker = beginning_worker(standby=1, minReplicas=2)
    run = training(replicaSpecs={"worker": worker})
    assert world(run.api) == (1, "0-2")
    cordon(run.api, 0, 3)
    api = settled(run).api
    assert not nodes(api) & {"node-0", "node-3"}
    assert len(status(api)["rendezvous"]["members"]) and len(api.list(PODS)) == 4
    assert not status(api).get("migrations") and events(api, "WorldBroken") == []


def test_nothing_is_done_for_nodes_of_others_taints_of_others_and_dlrs_own() -> None:
    run = training()
    cordon(run.api, 4)
    taint(run.api, 0, key="nvidia.com/gpu")
    taint(run.api, 1, effect="PreferNoSchedule")
    api = run.api
    taint(run.api, 2, key=names.TAINT_UNHEALTHY)
    api = settled(run).api
    assert world(api) == (1, "0-2") and budgets(api) == [2, 6] and events(api, "EvictionAnnounced") == []


def test_a_job_without_patience_is_evicted_as_ever() -> None:
    run = training(patience=0)
    cordon(run.api, 1)
    api = settled(run).api
    assert world(api) == (1, "0-2") and budgets(api) == [2]


def test_a_job_that_is_suspended_meanwhile_leaves_no_move_and_no_budget() -> None:
    run = training()
    cordon(run.api, *range(6))
    run = settled(run)
    edit(run.api, {"suspend": True})
    api = settled(run).api
    assert not status(api).get("migrations") and not api.list(PODDISRUPTIONBUDGETS) and not api.list(PODS)


def test_parameter_servers_are_left_alone() -> None:
    api = beginning()
    submit_roles(api)
    run = settled(Run(api))
    cordon(api, *range(6))
    assert not status(settled(run).api).get("migrations")


def test_a_node_that_is_lost_while_it_is_drained_is_lost_as_ever() -> None:
    run = training()
    cordon(run.api, *range(6))
    run = settled(run)
    cordon(run.api, 3, 4, 5, on=False)
    lose_node(run.api, "node-1")
    api = settled(run).api
    assert len(world(api)[1]) and not nodes(api) & {"node-0", "node-2"}
    assert not status(api).get("migrations")


# --- the controller's death between any two writes -------------------------------------------------------------

PHASES = (
    Phase(
        "create",
        lambda api: submit(api, elasticPolicy=POLICY | {"evictionPatienceSeconds": PATIENCE_SECONDS}),
    ),
    Phase("cordon", lambda api: cordon(api, 1)),
    Phase("drain of all others", lambda api: cordon(api, 0, 2, 4)),
    Phase("uncordon", lambda api: cordon(api, 1, on=False)),
)


@cache
def chapters() -> dict[str, Chapter]:
    return asyncio.run(undisturbed(PHASES))


def disturbed(chapter: Chapter, start: int, **more: Any) -> list[str]:
    run = Run(chapter.after(start), chapter.phase.script, **more)
    asyncio.run(run.settle())
    found = list(differences(end_state(chapter.end), end_state(run.api)))
    found += [f"a further world: {each}" for each in worlds(run.api) if each not in worlds(chapter.end)]
    found += sorted(set(unsound(run.api)).difference(unsound(chapter.end)))
    return [f"{chapter.phase.name}, {start}, {more}: {each}" for each in found + run.errors]


def test_the_undisturbed_moves_go_as_they_should() -> None:
    reached = {name: world(chapter.end) for name, chapter in chapters().items()}
    assert reached["create"] == (1, "0-2") and reached["cordon"] == (2, "0,2-3")
    assert reached["drain of all others"][0] == 4
    assert reached["uncordon"] == reached["drain of all others"]
    assert not nodes(chapters()["uncordon"].end) & {"node-0", "node-2", "node-4"}


@pytest.mark.parametrize("phase", ["cordon", "drain of all others", "uncordon"])
def test_a_kill_after_any_write_changes_nothing(phase: str) -> None:
    chapter = chapters()[phase]
    wrong = [each for start in range(len(chapter.moments) + 1) for each in disturbed(chapter, start)]
    assert wrong == []


@pytest.mark.parametrize("phase", ["cordon", "drain of all others"])
def test_two_kills_and_late_watches_change_nothing(phase: str) -> None:
    chapter, wrong = chapters()[phase], list[str]()
    for start in range(0, len(chapter.moments), 3):
        for second in (1, 2, 4):
            wrong += disturbed(chapter, start, kill_after=(second,))
        wrong += disturbed(chapter, start, lag=Lag(3, seed=start))
    assert wrong == []
