"""From dlr 0.1 to 0.2 with a job that trains (docs/upgrading.md): on the real API server, with hollow agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import crds
from controller.resources import CRDS
from crds.elasticjob import ElasticJob
from crds.elasticworker import WorkerPhase
from crds.job_status import ElasticJobStatus
from crds.model import ConditionStatus
from crds.protocol import RendezvousPhase
from crds.rendezvous import Rendezvous
from reconcilers.conditions.older_agents import AGENTS_CURRENT, renewals, with_older_agents
from reconcilers.observed.status_patch import validated
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS
from tests.reconcilers.build import NOW, job, later, participant, report, worker
from tests.reconcilers.cluster import NAMESPACE, ApiServer, Hollow, connected, controllers, install_crds

OF_0_1 = Path(__file__).parent / "fixtures" / "elasticjobs-0.1.yaml"
"""The CRD as 0.1 shipped it."""


@pytest.fixture
async def hollow(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Hollow]]:
    server = ApiServer(tmp_path / "server")
    try:
        async with connected(server) as client:
            await install_crds(client)
            yield server, client
    finally:
        server.stop()


async def apply_crd(hollow: Hollow, manifest: Mapping[str, Any]) -> None:
    patch = {"spec": {"versions": manifest["spec"]["versions"]}}
    await hollow.client.patch(CRDS, manifest["metadata"]["name"], patch)


async def write_as_0_1(hollow: Hollow, name: str) -> None:
    """The job in the middle of round 1, under the old CRD, and agents that do not tell a protocol."""
    world = await hollow.world(name)
    history = [
        {"state": "Training", "since": "2026-01-01T00:00:00Z", "round": n, "reason": "x" * 256}
        for n in range(50)
    ]
    status = {
        "rendezvous": {"members": world["members"], "incarnations": None, "reason": "x" * 1_000},
        "retired": {"worker": None},
        "migrations": None,
        "history": history,
    }
    await apply_crd(hollow, yaml.safe_load(OF_0_1.read_text()))
    await hollow.client.patch(ELASTICJOBS, name, {"status": status}, NAMESPACE, subresource="status")
    status = {"rendezvous": {"incarnations": world["incarnations"]}, "retired": {"ps": [3, 4]}}
    status["migrations"] = [{"type": "ps", "source": 1, "target": 7}]
    await hollow.client.patch(ELASTICJOBS, name, {"status": status}, NAMESPACE, subresource="status")
    for index in world["members"]:
        await hollow.say(f"{name}-worker-{index}", {"protocol": None})


async def test_a_job_trains_on_and_its_next_world_has_new_agents(hollow: tuple[ApiServer, Hollow]) -> None:
    server, cluster = hollow
    async with controllers(server):
        await cluster.train("going")
    await write_as_0_1(cluster, "going")
    (new,) = (m for m in crds.manifests() if m["metadata"]["name"].startswith("elasticjobs."))
    await apply_crd(cluster, new)
    stored = (await cluster.status("going"))["rendezvous"]
    assert (stored["members"], stored["incarnations"]) == ([0, 1], [1, 1]), "as 0.1 wrote it"

    async with controllers(server):

        async def rewritten() -> bool:
            return (await cluster.status("going"))["rendezvous"]["members"] == "0-1"

        await cluster.until("the new form", rewritten)
        status = await cluster.status("going")
        world = status["rendezvous"]
        assert (world["round"], world["phase"], world["incarnations"]) == (1, "Formed", {})
        assert status["migrations"] == {} or list(status["migrations"]) == ["ps"]
        assert (await condition(cluster))["status"] == "False"
        assert await cluster.pods("going") == ["going-worker-0-1", "going-worker-1-1"], "they train on"

        failure = {"sequence": 1, "round": 1, "rank": 1, "exitCode": 1, "time": "2026-01-01T00:00:00Z"}
        await cluster.say("going-worker-1", {"state": "Failed", "failure": failure})
        for index in (0, 1):
            await cluster.run_agent(f"going-worker-{index}", incarnation=2)
        world = await cluster.formed("going", 2)
        assert (world["members"], world["incarnations"]) == ([0, 1], [2, 2])

        async def renewed() -> bool:
            return (await condition(cluster))["status"] == "True"

        await cluster.until("all agents to be current", renewed)
        for index in (0, 1):
            found = await cluster.client.get(ELASTICWORKERS, f"going-worker-{index}", NAMESPACE)
            assert found["spec"]["incarnation"] == 2, "once"


async def condition(hollow: Hollow) -> dict[str, Any]:
    conditions = (await hollow.status("going"))["conditions"]
    return next((c for c in conditions if c["type"] == AGENTS_CURRENT), {"status": None})


def read_by_0_1(rendezvous: Mapping[str, Any]) -> list[tuple[int, int]] | None:
    """The members, as agents of 0.1 read them; None is no world, and they train on."""
    try:
        return [
            (int(index), int(incarnation))
            for index, incarnation in zip(
                rendezvous.get("members") or (), rendezvous.get("incarnations") or (), strict=True
            )
        ]
    except (KeyError, TypeError, ValueError):
        return None


@pytest.mark.parametrize("members", [[0], [7], [12], [0, 1], [0, 2], [3, 4, 7], list(range(0, 3_000, 2))])
@pytest.mark.parametrize("incarnation", [1, 2, 13])
def test_old_agents_misread_no_new_world(members: list[int], incarnation: int) -> None:
    world = Rendezvous(members=members, incarnations=[incarnation] * len(members))
    found = read_by_0_1(world.to_wire())
    assert found is None or found == [(members[0], incarnation)], "a world of one may be read, and rightly"


def test_what_0_1_stored_is_read() -> None:
    stored = {
        "rendezvous": {"round": 3, "phase": "Formed", "members": [0, 2], "incarnations": [1, 4]},
        "retired": {"worker": [1, 5]},
        "migrations": [
            {"type": "worker", "source": 2, "target": 3},
            {"type": "worker", "source": 0, "target": 4},
        ],
    }
    status = job(status=stored).status
    assert status.rendezvous is not None and status.rendezvous.incarnation_by_index() == {0: 1, 2: 4}
    wire = validated(status)
    assert wire["retired"] == {"worker": "1,5"}
    assert wire["migrations"] == {"worker": {"sources": "0,2", "targets": "3-4"}}
    assert ElasticJobStatus.model_validate(wire) == status


def test_moves_that_a_server_has_pruned_are_given_up() -> None:
    assert ElasticJobStatus.model_validate({"migrations": [{}, {}]}).migrations == {}


def old(index: int, **status: Any) -> Any:
    said = report(index).model_copy(update={"protocol": 1, "pod_uid": f"uid-{index}-1"})
    return worker(index, WorkerPhase.RUNNING, agent=said.to_wire(), **status)


def seen(workers: list[Any], **spec: Any) -> ElasticJob:
    """The job after a look at these."""
    of = job(**spec)
    conditions = with_older_agents((), of, workers, NOW)
    return of.model_copy(update={"status": of.status.model_copy(update={"conditions": conditions})})


def test_an_old_agent_is_in_no_new_world() -> None:
    assert participant(0).joinable
    said = report(0).model_copy(update={"protocol": 1})
    assert not participant(0, report=said).joinable


def test_an_old_agent_gets_a_new_pod_when_no_world_stands_that_has_it() -> None:
    workers = [old(0), old(1), worker(2, agent=report(2).to_wire())]
    formed = Rendezvous(round=1, phase=RendezvousPhase.FORMED, members=[0])
    assert renewals(job(), workers, formed) == frozenset(), "first it is told"
    assert renewals(seen(workers), workers, formed) == {"w1"}
    reforming = formed.model_copy(update={"phase": RendezvousPhase.REFORMING})
    assert renewals(seen(workers), workers, reforming) == {"w0", "w1"}


def test_an_old_agent_that_comes_again_is_not_replaced_for_ever() -> None:
    life = {"incarnation": 1, "createdAt": later(1).isoformat()}
    workers = [old(0, history=[life])]
    assert renewals(seen(workers), workers, Rendezvous()) == frozenset()


def test_an_image_that_brings_an_old_agent_is_told_about() -> None:
    found = seen([old(0)], agent={"inject": False})
    assert renewals(found, [old(0)], Rendezvous()) == frozenset()
    (told,) = found.status.conditions
    assert told.status is ConditionStatus.FALSE and "spec.agent.inject" in told.message
    (after,) = with_older_agents(found.status.conditions, found, [], NOW)
    assert after.status is ConditionStatus.TRUE
