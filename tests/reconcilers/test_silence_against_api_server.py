"""20 hollow workers whose agents are cut off from the API server, and a node that is really off."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from controller.resources import EVENTS
from reconcilers.runtime.kinds import ELASTICWORKERS
from tests.reconcilers.cluster import NAMESPACE, Hollow

pytestmark = pytest.mark.real

WORKERS = 20


@dataclass(frozen=True)
class Times:
    """A job and the seconds that count for it."""

    job: str
    timeout: int
    """Time-out of its agents."""
    beat: float
    """Time from one renewal of an agent to the next."""
    cut: int
    """Time for which they do not reach the API server."""
    node_lease: int
    """Duration of a node's Lease. The node is silent after 3/8 of it; kubelets renew in a quarter of it."""
    node_beat: float
    """Time from one renewal of it to the next."""
    lost: float = math.inf
    """Longest time until the worker of a dead node is lost."""

    def worker(self, index: int) -> str:
        return f"{self.job}-worker-{index}"

    def node(self, index: int) -> str:
        return f"{self.job}-node-{index}"


SHORT = Times("short", timeout=10, beat=2, cut=15, node_lease=40, node_beat=4)
"""Renewals may be late by the five seconds for which this process keeps contact without an answer: after a
longer stop of it, or of the API server, silences begin anew."""
USUAL = Times("usual", timeout=30, beat=10, cut=60, node_lease=40, node_beat=10, lost=31)
"""The defaults of dlr and of kubelets."""


class Fleet:
    """Renews the Leases of agents and of nodes, each of its own node, until they are cut off or off."""

    def __init__(self, hollow: Hollow, times: Times) -> None:
        self._hollow = hollow
        self._times = times
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
                await self._hollow.beat(self._times.worker(index))
            await asyncio.sleep(self._times.beat)

    async def _node_beats(self, index: int) -> None:
        while True:
            if index in self.powered:
                await self._hollow.node_beats(self._times.node(index), self._times.node_lease)
            await asyncio.sleep(self._times.node_beat)


@pytest.mark.parametrize("times", [SHORT, USUAL], ids=lambda times: times.job)
async def test_agents_that_are_cut_off_lose_no_pod_and_a_dead_node_is_noticed_within_the_time_out(
    hollow: Hollow, times: Times
) -> None:
    policy = {"heartbeatTimeoutSeconds": times.timeout}
    await hollow.submit(times.job, WORKERS, elasticPolicy=policy, worker={"minReplicas": 2})
    await asyncio.gather(*(_begin(hollow, index, times) for index in range(WORKERS)))
    await hollow.formed(times.job, 1)
    for index in range(WORKERS):
        await hollow.say(times.worker(index), {"state": "Running", "observedRound": 1})
    fleet = Fleet(hollow, times)
    async with fleet.beating():
        await asyncio.sleep(3 * times.beat)  # all are heard for a while: time has to pass
        assert await _silent(hollow, times) is None
        pods = await hollow.pods(times.job)

        fleet.heard = set()
        cut_at = time.monotonic()

        async def all_silent() -> bool:
            found = await _silent(hollow, times)
            return found is not None and f"from {WORKERS} of {WORKERS} workers" in found["message"]

        await hollow.until("the job to say that all are silent", all_silent)
        print(f"said {time.monotonic() - cut_at:.1f} s after the cut")
        await asyncio.sleep(times.cut - (time.monotonic() - cut_at))
        assert await hollow.pods(times.job) == pods, "nothing is deleted"
        world = await hollow.world(times.job)
        assert (world["phase"], world["round"]) == ("Formed", 1), "training goes on"
        fleet.heard = set(range(WORKERS))

        async def all_heard() -> bool:
            return await _silent(hollow, times) is None

        await hollow.until("the job to say that all are heard", all_heard)
        await hollow.until("the Events", lambda: _both_events(hollow, times))
        assert await hollow.pods(times.job) == pods

        fleet.powered = fleet.powered - {7}
        off_at = time.monotonic()

        async def is_lost() -> dict[str, Any] | None:
            found = await hollow.client.get(ELASTICWORKERS, times.worker(7), NAMESPACE)
            return found if found["spec"]["incarnation"] == 2 else None

        lost = await hollow.until("the dead node's worker to be lost", is_lost)
        took = time.monotonic() - off_at
        print(f"lost {took:.1f} s after its node was off, with a time-out of {times.timeout} s")
        assert took < times.lost
        assert lost["status"]["restarts"] == {"NodeLost": 1}
        assert lost["spec"]["excludedNodes"] == [times.node(7)]
    others = [
        await hollow.client.get(ELASTICWORKERS, times.worker(i), NAMESPACE) for i in range(WORKERS) if i != 7
    ]
    assert {each["spec"]["incarnation"] for each in others} == {1}
    assert not [each for each in others if each["status"].get("restarts")]


async def _begin(hollow: Hollow, index: int, times: Times) -> None:
    await hollow.add_node(times.node(index))
    await hollow.node_beats(times.node(index), times.node_lease)
    await hollow.bind(f"{times.worker(index)}-1", times.node(index))
    await hollow.run_agent(times.worker(index))


async def _silent(hollow: Hollow, times: Times) -> dict[str, Any] | None:
    warnings = (await hollow.status(times.job)).get("warnings", ())
    found: dict[str, Any] | None = next((w for w in warnings if w["type"] == "AgentsSilent"), None)
    return found


async def _both_events(hollow: Hollow, times: Times) -> bool:
    """Each of the two came, and once."""
    events = (await hollow.client.list(EVENTS, NAMESPACE))["items"]
    ours = [event["reason"] for event in events if event["involvedObject"]["name"] == times.job]
    told = [reason for reason in ours if reason in ("AgentsSilent", "AgentsHeard")]
    assert len(told) == len(set(told))
    return len(told) == 2
