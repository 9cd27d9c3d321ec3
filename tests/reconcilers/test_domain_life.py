"""Four domains of four nodes by the real reconcilers: a node lost, a switch lost, a domain drained."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.facts.world import WorldView
from controller.resources import NODES
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, ELASTICWORLDS
from tests.reconcilers.api import Api
from tests.reconcilers.cluster_model import Script, add_nodes, lose_node
from tests.reconcilers.life import JOB, Run, edit, lose_pod, submit

pytestmark = pytest.mark.played

RACKS = "abcd"
LABEL = "nvidia.com/gpu.clique"


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.slices.LARGE", 10_000)


def rack_of(slot: int) -> str:
    """Neighbours by index are in different racks, as the default scheduler deals Pods."""
    return RACKS[slot % 4]


def fleet(nodes: int) -> Api:
    api = Api()
    add_nodes(api, nodes)
    for slot in range(nodes):
        api.patch(NODES, node_of(api, slot), {"metadata": {"labels": {LABEL: rack_of(slot)}}})
    return api


def node_of(api: Api, slot: int) -> str:
    """The node that the first Pod of a slot gets."""
    return sorted(str(node["metadata"]["name"]) for node in api.list(NODES))[slot]


def train(api: Api, *, standby: int = 0, least: int = 8, **policy: Any) -> None:
    times = {"lastCallSeconds": 5, "shrinkAfterSeconds": 20, "heartbeatTimeoutSeconds": 30}
    submit(api, elasticPolicy={"domain": "auto"} | times | policy)
    edit(api, {"replicaSpecs": {"worker": {"replicas": 16, "minReplicas": least, "standby": standby}}})
    settle(api)


def settle(api: Api, script: Script | None = None) -> None:
    asyncio.run(Run(api, script or Script()).settle())


def ranks(api: Api) -> list[int]:
    """The members as an agent reads them."""
    world = WorldView.parse(api.get(ELASTICWORLDS, JOB)).world
    assert world is not None and world.phase == "Formed"
    return [member.index for member in world.members]


def domains(api: Api, members: list[int]) -> str:
    found = [api.get(ELASTICWORKERS, f"{JOB}-worker-{index}")["status"]["domain"] for index in members]
    return "".join(found)


def relaunched(api: Api) -> set[int]:
    return {w["spec"]["index"] for w in api.list(ELASTICWORKERS) if w["spec"]["incarnation"] > 1}


def status(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = api.get(ELASTICJOBS, JOB)["status"]
    return found


BY_RACK = [*range(0, 16, 4), *range(1, 16, 4), *range(2, 16, 4), *range(3, 16, 4)]


def test_a_lost_node_is_replaced_within_its_domain_and_nobody_else_is_blamed() -> None:
    """Workers 16 and 17 stand by, in racks a and b."""
    api = fleet(18)
    train(api, standby=2)
    lose_node(api, node_of(api, 5))
    settle(api)
    assert ranks(api) == [0, 4, 8, 12, 1, 9, 13, 17, *range(2, 16, 4), *range(3, 16, 4)]
    assert domains(api, ranks(api)) == "aaaabbbbccccdddd"
    assert relaunched(api) == {5} and status(api)["failures"] == {"NodeLost": 1}


def test_a_world_of_whole_domains_goes_on_without_the_one_whose_switch_is_lost() -> None:
    """And no node is free."""
    api = fleet(16)
    train(api, nodeUnit=4)
    for number in range(16):
        api.patch(NODES, node_of(api, number), {"spec": {"unschedulable": True}})
    for number in range(1, 16, 4):
        lose_node(api, node_of(api, number))
    settle(api)
    assert ranks(api) == [*range(0, 16, 4), *range(2, 16, 4), *range(3, 16, 4)], "who stays keeps its order"
    assert domains(api, ranks(api)) == "aaaaccccdddd"
    assert relaunched(api) == {1, 5, 9, 13} and status(api)["failures"] == {"NodeLost": 4}


def test_slots_that_move_to_another_domain_as_a_whole_have_their_ranks_back() -> None:
    api = fleet(20)
    for slot in range(16, 20):
        api.patch(NODES, node_of(api, slot), {"metadata": {"labels": {LABEL: "e"}}})
    train(api, nodeUnit=4)
    for number in range(1, 16, 4):
        lose_node(api, node_of(api, number))
    settle(api)
    assert ranks(api) == BY_RACK and domains(api, ranks(api)) == "aaaaeeeeccccdddd"
    assert relaunched(api) == {1, 5, 9, 13}


def test_the_slots_of_a_drained_domain_train_elsewhere_and_their_ranks_are_beside_their_new_neighbours() -> (
    None
):
    api = fleet(16)
    train(api)
    for number in range(2, 16, 4):
        api.patch(NODES, node_of(api, number), {"spec": {"unschedulable": True}})
        lose_pod(api, number)
    settle(api)
    members = ranks(api)
    assert sorted(members) == [*range(16)]
    found = domains(api, members)
    assert "c" not in found and found == "".join(sorted(found)), "contiguous, in the order as before"
    stays = [index for index in members if rack_of(index) != "c"]
    assert stays == [index for index in BY_RACK if rack_of(index) != "c"], "who stays keeps its order"
    assert relaunched(api) == {2, 6, 10, 14}


def test_a_standby_domain_takes_over_from_a_lost_one_as_a_whole() -> None:
    api = fleet(20)
    for slot in range(16, 20):
        api.patch(NODES, node_of(api, slot), {"metadata": {"labels": {LABEL: "e"}}})
    train(api, standby=4, nodeUnit=4)
    assert sorted(ranks(api)) == [*range(16)]
    for number in range(1, 16, 4):
        lose_node(api, node_of(api, number))
    settle(api)
    assert domains(api, ranks(api)) == "aaaaccccddddeeee"
