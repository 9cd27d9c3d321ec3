"""50 hollow workers whose agents are cut off from the API server, and a node that is really off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from controller.resources import EVENTS
from reconcilers.runtime.kinds import ELASTICWORKERS
from tests.reconcilers.cluster import NAMESPACE, Hollow

WORKERS = 50
TIMEOUT_SECONDS = 5
"""The least that may be asked for; agents renew three times in it."""
CUT_SECONDS = 2 * TIMEOUT_SECONDS
"""Two time-outs, as 60 s are of the default."""
NODE_LEASE_SECONDS = 4
"""A node is silent after 1.5 s without a renewal; kubelets renew in a quarter of it."""


class Fleet:
    """Renews the Leases of agents and of nodes, each of its own node, until they are cut off or off."""

    def __init__(self, hollow: Hollow) -> None:
        self._hollow = hollow
        self.heard = set(range(WORKERS))
        self.powered = set(range(WORKERS))

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            beats = [tasks.create_task(each) for index in range(WORKERS) for each in self._beats(index)]
            yield
            for beat in beats:
                beat.cancel()

    def _beats(self, index: int) -> tuple[Any, Any]:
        return self._agent_beats(index), self._node_beats(index)

    async def _agent_beats(self, index: int) -> None:
        while True:
            if index in self.heard & self.powered:
                await self._hollow.beat(worker(index))
            await asyncio.sleep(TIMEOUT_SECONDS / 3)

    async def _node_beats(self, index: int) -> None:
        while True:
            if index in self.powered:
                await self._hollow.node_beats(node(index), NODE_LEASE_SECONDS)
            await asyncio.sleep(NODE_LEASE_SECONDS / 4)


def worker(index: int) -> str:
    return f"cut-worker-{index}"


def node(index: int) -> str:
    return f"node-{index}"


async def test_agents_that_are_cut_off_lose_no_pod_and_a_dead_node_is_noticed_within_the_time_out(
    hollow: Hollow,
) -> None:
    policy = {"heartbeatTimeoutSeconds": TIMEOUT_SECONDS}
    await hollow.submit("cut", WORKERS, elasticPolicy=policy, worker={"minReplicas": 2})
    await asyncio.gather(*(_begin(hollow, index) for index in range(WORKERS)))
    await hollow.formed("cut", 1)
    for index in range(WORKERS):
        await hollow.say(worker(index), {"state": "Running", "observedRound": 1})
    fleet = Fleet(hollow)
    async with fleet.beating():
        await asyncio.sleep(TIMEOUT_SECONDS)  # all are heard for a while: time has to pass
        assert await _silent(hollow) is None
        pods = await hollow.pods("cut")

        fleet.heard = set()
        cut_at = time.monotonic()

        async def all_silent() -> bool:
            found = await _silent(hollow)
            return found is not None and f"from {WORKERS} of {WORKERS} workers" in found["message"]

        await hollow.until("the job to say that all are silent", all_silent, CUT_SECONDS)
        print(f"said {time.monotonic() - cut_at:.1f} s after the cut")
        await asyncio.sleep(CUT_SECONDS - (time.monotonic() - cut_at))
        assert await hollow.pods("cut") == pods, "nothing is deleted"
        world = await hollow.world("cut")
        assert (world["phase"], world["round"]) == ("Formed", 1), "training goes on"
        fleet.heard = set(range(WORKERS))

        async def all_heard() -> bool:
            return await _silent(hollow) is None

        await hollow.until("the job to say that all are heard", all_heard)
        await hollow.until("the Events", lambda: _both_events(hollow))
        assert await hollow.pods("cut") == pods

        fleet.powered = fleet.powered - {7}
        off_at = time.monotonic()

        async def is_lost() -> dict[str, Any] | None:
            found = await hollow.client.get(ELASTICWORKERS, worker(7), NAMESPACE)
            return found if found["spec"]["incarnation"] == 2 else None

        lost = await hollow.until("the dead node's worker to be lost", is_lost)
        took = time.monotonic() - off_at
        print(f"lost {took:.1f} s after its node was off, with a time-out of {TIMEOUT_SECONDS} s")
        assert took < TIMEOUT_SECONDS + 3
        assert lost["status"]["restarts"] == {"NodeLost": 1}
        assert lost["spec"]["excludedNodes"] == [node(7)]
    others = [await hollow.client.get(ELASTICWORKERS, worker(i), NAMESPACE) for i in range(WORKERS) if i != 7]
    assert {each["spec"]["incarnation"] for each in others} == {1}
    assert not [each for each in others if each["status"].get("restarts")]


async def _begin(hollow: Hollow, index: int) -> None:
    await hollow.add_node(node(index))
    await hollow.node_beats(node(index), NODE_LEASE_SECONDS)
    await hollow.bind(f"{worker(index)}-1", node(index))
    await hollow.run_agent(worker(index))


async def _silent(hollow: Hollow) -> dict[str, Any] | None:
    warnings = (await hollow.status("cut")).get("warnings", ())
    found: dict[str, Any] | None = next((w for w in warnings if w["type"] == "AgentsSilent"), None)
    return found


async def _both_events(hollow: Hollow) -> bool:
    """Each of the two came, and once."""
    events = (await hollow.client.list(EVENTS, NAMESPACE))["items"]
    told = [event["reason"] for event in events if event["reason"] in ("AgentsSilent", "AgentsHeard")]
    assert len(told) == len(set(told))
    return len(told) == 2
