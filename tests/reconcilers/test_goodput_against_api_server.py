"""A job's account as the reconcilers write it, with one controller after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reconcilers.runtime.kinds import ELASTICJOBS
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected, controllers

pytestmark = pytest.mark.real


@pytest.fixture
async def hollow(server: ApiServer) -> AsyncIterator[Hollow]:
    async with connected(server) as hollow:
        yield hollow


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def told(*rounds: tuple[int, int, int], **more: Any) -> dict[str, Any]:
    """Rounds with their first and last steps, a step every 10 ms."""
    listed = [
        {"round": r, "firstStep": first, "lastStep": last, "steppingSeconds": (last - first) / 100}
        for r, first, last in rounds
    ]
    return {"rounds": listed, "progress": {"step": rounds[-1][2], "time": now()}} | more


async def in_state(hollow: Hollow, name: str, state: str) -> dict[str, Any]:
    async def check() -> dict[str, Any] | None:
        status = await hollow.status(name)
        return status if (status.get("goodput") or {}).get("state") == state else None

    return await hollow.until(f"{name} {state}", check)


async def test_the_account_goes_on_whoever_keeps_it(server: ApiServer, hollow: Hollow) -> None:
    async with controllers(server):
        await hollow.train("kept", 2)
        await in_state(hollow, "kept", "Training")
        for index in (0, 1):
            await hollow.say(f"kept-worker-{index}", told((1, 1, 1)))

        async def has_begun() -> bool:
            return (await hollow.status("kept"))["goodput"].get("firstStep") == 1

        await hollow.until("the first step", has_begun)
        written = (await hollow.job("kept"))["metadata"]["resourceVersion"]
        for last in range(2, 12):
            await hollow.say("kept-worker-0", told((1, 1, last)))

    # Nobody looks.
    began = datetime.fromisoformat((await hollow.status("kept"))["history"][2]["since"])

    async def steps_are_over() -> bool:
        return datetime.fromisoformat(now()) > began + timedelta(seconds=0.11)

    await hollow.until("as much time as the steps took", steps_are_over)
    failure = {"sequence": 1, "round": 1, "exitCode": 1, "message": "no", "time": now()}
    await hollow.say("kept-worker-1", told((1, 1, 11), state="Failed", failure=failure))
    assert (await hollow.job("kept"))["metadata"]["resourceVersion"] == written, "steps write nothing"

    async with controllers(server):
        await in_state(hollow, "kept", "Recovering")
        await hollow.formed("kept", 2)
        for index in (0, 1):
            report = told((1, 1, 12), (2, 11, 11), state="Running", observedRound=2)
            await hollow.say(f"kept-worker-{index}", report)
        await in_state(hollow, "kept", "Training")
        for index in (0, 1):
            report = told((1, 1, 12), (2, 11, 21), state="Succeeded", observedRound=2)
            await hollow.say(f"kept-worker-{index}", report)
        status = await hollow.phase("kept", "Succeeded")

    goodput = status["goodput"]
    assert (goodput["firstStep"], goodput["lastStep"], goodput["stepsRedone"]) == (1, 21, 2)
    assert goodput["steppingSeconds"] == pytest.approx(0.11 + 0.10)
    assert [e["state"] for e in status["history"]] == [
        "Pending",
        "Forming",
        "Training",
        "Recovering",
        "Training",
    ]
    assert status["history"][3]["since"] == failure["time"]
    submitted, ended = status["history"][0]["since"], status["completionTime"]
    life = (datetime.fromisoformat(ended) - datetime.fromisoformat(submitted)).total_seconds()
    assert sum(goodput["seconds"].values()) == pytest.approx(life, abs=0.01)
    assert goodput["ratio"] == pytest.approx(21 * 0.01 / life, rel=1e-3)


async def test_suspension_and_checks_have_their_own_time(server: ApiServer, hollow: Hollow) -> None:
    async with controllers(server):
        await hollow.train("held", 1)
        await in_state(hollow, "held", "Training")
        await hollow.client.patch(ELASTICJOBS, "held", {"spec": {"suspend": True}}, NAMESPACE)
        await in_state(hollow, "held", "Suspended")
        await hollow.client.patch(ELASTICJOBS, "held", {"spec": {"suspend": False}}, NAMESPACE)
        status = await in_state(hollow, "held", "Pending")
        states = [(e["state"], e["reason"]) for e in status["history"]]
        assert [state for state, _ in states[:3]] == ["Pending", "Forming", "Training"]
        assert states[3:] == [("Suspended", "the job is suspended"), ("Pending", "resumed")]

        await hollow.submit("tested", 2, nodeCheck={"enabled": True})
        for index in (0, 1):
            await hollow.run_agent(f"tested-worker-{index}")
        status = await in_state(hollow, "tested", "Checking")
        assert status["history"][-1]["reason"] == "check tested-check-1"
