"""Whole checks by the real reconciler, from the object's creation to its verdicts, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.resources import NODES
from crds import names
from crds.nodecheck import MOST_NAMED, NodeCheck
from healthcheck.diagnosis import Diagnosis
from healthcheck.fleet import Node
from healthcheck.measurements import CheckHistory
from healthcheck.plan import ProbeRound, next_step
from healthcheck.settings import Settings
from reconcilers.nodecheck.claiming import MOST_WAITING, ClaimView
from reconcilers.nodecheck.reconciler import CONSEQUENCES_SECONDS
from reconcilers.observed.builder import owner_reference
from reconcilers.runtime.kinds import ELASTICJOBS, ELASTICWORKERS, NODECHECKS
from reconcilers.runtime.refused import RETRY_SECONDS
from tests.counting import calls
from tests.reconcilers.api import NAMESPACE
from tests.reconcilers.build import BAD, GOOD, NO_GPU, NOW, node_sets
from tests.reconcilers.check_stage import Agents, Stage

SIX = [f"node-{i}" for i in range(1, 7)]


def broken(*bad: str) -> Agents:
    """Every pair test with one of these fails."""
    return Agents(passes=lambda round_, members: not {*bad} & {*members})


def stage(nodes: Sequence[str] = SIX, agents: Agents | None = None, **spec: Any) -> Stage:
    staged = Stage(agents=agents or Agents())
    staged.add_nodes(*nodes)
    staged.add_check(nodes=list(nodes), **spec)
    return staged


def groups(staged: Stage) -> list[list[list[str]]]:
    nodes = staged.status()["nodes"]
    return [[[nodes[at] for at in test] for test in done["tests"]] for done in staged.status()["rounds"]]


# --- checks of nodes ----------------------------------------------------------------------------------------


@pytest.fixture
def first_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round 1 has the partners that it has where no uid turns them."""
    monkeypatch.setattr("reconcilers.nodecheck.reconciler.rotation_of", lambda uid: 0)


@pytest.mark.usefixtures("first_rotation")
async def test_the_write_ups_example_six_nodes_of_which_the_sixth_is_broken() -> None:
    staged = stage(agents=broken("node-6"))
    check = await staged.play()
    one, two, three, four, five, six = SIX
    assert groups(staged) == [
        [[one, six], [two, five], [three, four]],
        [[one, two], [three, five], [four, six]],
        [[two, six]],
        [[three, six]],
        [[five, six]],
    ]
    assert check.status.faulty_nodes == [six] and staged.verdicts()[five] == "Healthy"
    assert staged.condition("Healthy")["reason"] == "FaultyNodes"
    assert staged.condition("Healthy")["message"] == "of 6 nodes, 1 faulty (node-6)"
    assert staged.said("c") == [
        ("CheckStarted", "6 nodes"),
        ("RoundStarted", "local tests: 6 nodes"),
        ("RoundFinished", "local tests: 6 of 6 nodes have answered"),
        ("RoundStarted", "round 1: 3 groups of nodes that test each other"),
        ("RoundFinished", "round 1: 2 of 3 groups passed; not: node-1+node-6"),
        ("RoundStarted", "round 2: 3 groups of nodes that test each other"),
        ("RoundFinished", "round 2: 2 of 3 groups passed; not: node-4+node-6"),
        ("RoundStarted", "round 3: 1 group of nodes that test each other"),
        ("RoundFinished", "round 3: 0 of 1 groups passed; not: node-2+node-6"),
        ("RoundStarted", "round 4: 1 group of nodes that test each other"),
        ("RoundFinished", "round 4: 0 of 1 groups passed; not: node-3+node-6"),
        ("RoundStarted", "round 5: 1 group of nodes that test each other"),
        ("RoundFinished", "round 5: 0 of 1 groups passed; not: node-5+node-6"),
        ("CheckFinished", "of 6 nodes, 1 faulty (node-6)"),
    ]


async def test_healthy_nodes_take_two_rounds_and_one_write_a_step() -> None:
    staged = stage()
    check = await staged.play()
    assert set(staged.verdicts().values()) == {"Healthy"} and len(check.status.rounds) == 2
    assert [patch.get("round") for patch in staged.writes] == [None, None, 0, 1, 2, None]
    assert not check.status.groups and check.status.completion_time is not None
    assert [staged.condition(type_)["status"] for type_ in ("Running", "Succeeded", "Healthy")] == [
        "False",
        "True",
        "True",
    ]


async def test_workers_that_a_quota_refuses_are_not_asked_for_again_by_every_look() -> None:
    """Each agent that comes leads to a look, and so does what the check itself says: it must not go round."""
    staged = stage()
    staged.refuses = lambda obj: len(staged.stores.store(ELASTICWORKERS)) >= 3
    await staged.reconcile()
    await staged.reconcile()
    assert len(staged.refused) == 3 and "exceeded quota" in staged.condition("Running")["message"]
    written = len(staged.writes)
    for worker in list(staged.stores.store(ELASTICWORKERS).list()):
        staged.start(worker["metadata"]["name"], worker["spec"]["nodeName"])
        again = await staged.reconcile()
    assert (len(staged.refused), len(staged.writes)) == (3, written)
    assert again == RETRY_SECONDS
    staged.refuses = lambda obj: False
    staged.seconds += again
    await staged.reconcile()
    assert len(staged.stores.store(ELASTICWORKERS)) == 6
    assert {*(await staged.play()).status.nodes} == {*SIX} and not staged.status().get("inconclusive")


async def test_check_that_is_made_again_asks_for_no_worker_while_the_earlier_ones_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a large check would ask for them without a pause, until garbage collection has come to the last."""
    monkeypatch.setattr("reconcilers.nodecheck.reconciler.MOST_AT_ONCE", 2)
    staged, asked = stage(), list[str]()
    owner = owner_reference("NodeCheck", "c", "uid-of-the-earlier")
    for index, node in enumerate(SIX):
        metadata = {"name": f"c-check-{index}", "ownerReferences": [owner]}
        spec = {"checkName": "c", "type": "check", "index": index, "incarnation": 1, "nodeName": node}
        staged.put(ELASTICWORKERS, {"metadata": metadata, "spec": spec})
    staged.refuses = lambda obj: asked.append(obj["metadata"]["name"]) is not None
    await staged.reconcile()
    assert await staged.reconcile() and asked == [], "some time passes before the next look"
    for index in range(3):
        staged.remove(ELASTICWORKERS, f"c-check-{index}")
    assert await staged.reconcile() == 0.0 and len(asked) == 2
    assert await staged.reconcile() and len(asked) == 3


async def test_check_whose_time_was_over_while_no_controller_was_there_is_kept_until_all_follows_from_it() -> (
    None
):
    staged = Stage()
    ended = (NOW - timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    over = {"phase": "Succeeded", "nodes": SIX, "completionTime": ended}
    staged.add_check(status=over, nodes=SIX, ttlSecondsAfterFinished=3_600)
    again = await staged.reconcile()
    assert again == CONSEQUENCES_SECONDS and staged.status()
    staged.seconds += again
    assert await staged.reconcile() is None
    assert not staged.stores.store(NODECHECKS)


async def test_node_without_local_results_in_time_is_left_out_and_not_blamed() -> None:
    staged = stage(agents=Agents(local=lambda node: None if node == "node-2" else GOOD), timeoutSeconds=60)
    check = await staged.play()
    assert not check.status.faulty_nodes and check.status.inconclusive == ["node-2"]
    assert 60 <= staged.seconds < 61
    assert staged.condition("NodesTested")["reason"] == "TooLate"
    assert "no result of its local tests in time" in check.status.node_results[1].message


async def silent_in_first_round(rounds: int = 1, **agents: Any) -> Stage:
    """A check whose node-1 has given no answer in so many rounds."""
    silent = Agents(silent_in_pairs=frozenset({"node-1"}), **agents)
    staged = stage(agents=silent, timeoutSeconds=60)
    while len(staged.status().get("rounds", ())) < rounds:
        staged.seconds += await staged.reconcile() or 0
        staged.act()
    return staged


async def test_lost_node_stays_silent_when_its_worker_is_on_another_node() -> None:
    """The later Pod's report is no report of the node, so its group meets at another member's agent."""
    staged = await silent_in_first_round()
    staged.end("c-check-0", "NodeLost")
    staged.update(ELASTICWORKERS, "c-check-0", {"spec": {"incarnation": 2}})
    staged.start("c-check-0", "node-9")
    check = await staged.play()
    assert check.status.faulty_nodes == ["node-1"]


@pytest.mark.parametrize(("rounds", "verdict"), [(1, "Inconclusive"), (3, "Faulty")])
async def test_end_of_a_pod_is_no_further_silence_and_hides_none(rounds: int, verdict: str) -> None:
    staged = await silent_in_first_round(rounds, passes=lambda round_, members: "node-6" not in members)
    staged.end("c-check-0", "Preempted")
    await staged.play()
    assert staged.verdicts()["node-1"] == verdict


async def test_new_controller_gives_everybody_the_whole_time_again() -> None:
    staged = stage(agents=Agents(local=lambda node: None if node == "node-2" else GOOD), timeoutSeconds=60)
    for _ in range(6):
        await staged.reconcile()
        staged.act()
    staged.seconds += 59
    staged.restart()
    assert await staged.reconcile() == pytest.approx(60, abs=0.1)
    assert staged.status()["phase"] == "Running"


@pytest.mark.parametrize(
    ("type_", "reason", "why", "told"),
    [
        (
            "Started",
            "ErrImagePull",
            "main: no such image",
            "its Pod does not start (ErrImagePull): main: no such image",
        ),
        ("Scheduled", "Unschedulable", "insufficient nvidia.com/gpu", "insufficient nvidia.com/gpu"),
    ],
)
async def test_node_on_which_the_pod_cannot_start_is_not_blamed_and_the_others_go_on(
    type_: str, reason: str, why: str, told: str
) -> None:
    staged = stage(timeoutSeconds=60)
    staged.dead.add("node-3")
    while not staged.stores.store(ELASTICWORKERS).list():
        await staged.reconcile()
    hindered = {"type": type_, "status": "False", "reason": reason, "message": why}
    condition = hindered | {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"observedIncarnation": 1, "phase": "Pending", "podUid": "p", "conditions": [condition]}
    staged.update(ELASTICWORKERS, "c-check-2", {"status": status})
    await staged.reconcile()
    running = staged.condition("Running")["message"]
    assert running.startswith("waits for the agents on its nodes; node-3: ") and told in running
    check = await staged.play()
    assert check.status.faulty_nodes == [] and check.status.inconclusive == ["node-3"]
    assert told in check.status.withdrawn[0].message
    assert staged.condition("NodesTested")["status"] == "False"
    assert staged.condition("NodesTested")["message"].startswith(
        "1 of 6 nodes could not be tested, for no fault of theirs; "
    )


@pytest.mark.parametrize(
    ("exit_class", "verdict"),
    [("Preempted", "Inconclusive"), ("NodeLost", "Faulty")],
)
async def test_end_of_a_pod_is_the_nodes_fault_only_if_the_node_was_lost(
    exit_class: str, verdict: str
) -> None:
    staged = stage(timeoutSeconds=600)
    while staged.status().get("round") != 1:
        await staged.reconcile()
        if staged.status().get("round") != 1:
            staged.act()
    staged.end("c-check-1", exit_class, "it is gone")
    await staged.play()
    assert staged.verdicts() == dict.fromkeys(SIX, "Healthy") | {"node-2": verdict}
    assert staged.seconds < 600


async def test_node_without_the_gpu_that_was_asked_for_withdraws_at_once_and_gets_no_pod() -> None:
    staged = stage(SIX[:3], accelerator="nvidia.com/gpu")
    for node in SIX[:2]:
        staged.update_node(node, {"nvidia.com/gpu": "8"})
    check = await staged.play()
    assert [left.node for left in check.status.withdrawn] == ["node-3"]
    assert "the check requires" in check.status.withdrawn[0].message and staged.seconds < 1
    assert len(staged.stores.store(ELASTICWORKERS).list()) == 2


@pytest.mark.parametrize(
    ("usable", "tested", "cordoned", "verdict"),
    [
        ("8", 8, True, "Healthy"),
        ("7", 7, True, "Inconclusive"),
        ("7", 7, False, "Healthy"),
    ],
)
async def test_cordoned_node_with_gpus_that_no_pod_gets_is_not_cleared(
    usable: str, tested: int, cordoned: bool, verdict: str
) -> None:
    staged = stage()
    staged.accelerators = {"kind": "nvidia", "count": tested, "model": "a GPU"}
    gpus = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": usable}}
    taint = {"spec": {"taints": [{"key": names.TAINT_UNHEALTHY, "effect": "NoSchedule"}]}}
    staged.update(NODES, "node-1", {"status": gpus} | (taint if cordoned else {}))
    await staged.play()
    assert staged.verdicts()["node-1"] == verdict and staged.verdicts()["node-2"] == "Healthy"


async def test_accelerators_that_no_probe_knows_are_told_of() -> None:
    staged = stage(SIX[:2])
    staged.update_node("node-1", {"amd.com/gpu": "8", "cpu": "64"})
    await staged.play()
    told = staged.condition("AcceleratorsTested")
    assert told["status"] == "False" and "amd.com/gpu" in told["message"]


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"nodes": ["node-1", "x", "y"]}, "NodeNotFound", "there are no nodes x, y"),
        ({"nodeSelector": {"pool": "b"}}, "NoNodes", "no node has the labels pool=b"),
        ({"jobName": "j"}, "JobNotFound", "there is no job j"),
    ],
)
async def test_check_that_cannot_be_carried_out_fails_with_one_sentence(
    spec: dict[str, Any], reason: str, message: str
) -> None:
    staged = Stage()
    staged.add_nodes("node-1")
    staged.add_check(**spec)
    await staged.play()
    failed = staged.condition("Failed")
    assert (failed["status"], failed["reason"], failed["message"]) == ("True", reason, message)
    assert not staged.verdicts() and staged.status()["phase"] == "Failed"


async def test_selector_takes_the_nodes_with_the_labels() -> None:
    staged = Stage()
    staged.add_nodes("b", "a", metadata={"labels": {"pool": "x", "zone": "z"}})
    staged.add_nodes("c", metadata={"labels": {"pool": "y"}})
    staged.add_check(nodeSelector={"pool": "x"})
    assert (await staged.play()).status.nodes == ["a", "b"]


async def test_nodes_that_were_added_just_before_the_check_are_judged_by_a_controller_whose_clock_is_behind() -> (
    None
):
    staged = Stage(agents=Agents())
    staged.add_nodes("node-1", created=NOW + timedelta(seconds=2))
    staged.add_check(nodes=["node-1"], created=NOW + timedelta(seconds=2))
    await staged.play()
    assert staged.verdicts() == {"node-1": "Healthy"}


# --- two checks of the same nodes -----------------------------------------------------------------------------


async def test_a_check_waits_for_one_that_has_its_node_be_it_older_or_younger() -> None:
    staged = stage(SIX[:3])
    await staged.reconcile()
    for seconds in (-1, 1):
        name = f"at{seconds}"
        staged.add_check(name, nodes=["node-3"], created=NOW + timedelta(seconds=seconds))
        await staged.reconcile(name)
        waiting = staged.condition("Running", name)
        assert (waiting["reason"], waiting["status"]) == ("WaitingForCheck", "False")
        assert waiting["message"] == "waits: node node-3 is being checked by NodeCheck default/c"
    await staged.play("c")
    await staged.play("at1")
    assert staged.verdicts("at1") == {"node-3": "Healthy"}


async def test_check_of_the_same_second_waits_for_one_whose_begin_is_being_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staged = stage(SIX[:3])
    client = staged.process.client

    async def another_is_made(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        staged.add_check("b", nodes=["node-3"])
        looks.append(asyncio.create_task(staged.reconcile("b")))
        await asyncio.sleep(0)
        return await client.patch(*args, **more)

    looks = list[asyncio.Task[float | None]]()
    monkeypatch.setattr(client, "patch", another_is_made)
    await staged.reconcile("c")
    await asyncio.gather(*looks)
    assert staged.status("c")["nodes"] == SIX[:3] and not staged.status("b").get("nodes")
    assert staged.condition("Running", "b")["reason"] == "WaitingForCheck"
    await staged.play("c")
    await staged.play("b")
    assert staged.verdicts("b") == {"node-3": "Healthy"}


# --- fresh passes -----------------------------------------------------------------------------------------------


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def passed_before(
    staged: Stage, *nodes: str, seconds_ago: float = 10, took: float = 0, verdict: str = "Healthy"
) -> None:
    times = {"startTime": ago(seconds_ago + took), "completionTime": ago(seconds_ago)}
    results = [{"node": node, "verdict": verdict, "message": "it passed 1 test"} for node in nodes]
    staged.add_check(
        f"before-{nodes[0]}",
        status={"phase": "Succeeded", "nodeResults": results, **times}
        | {"nodes": list(nodes), "nodeSets": node_sets(nodes, dict.fromkeys(nodes, verdict))},
        nodes=list(nodes),
    )


async def test_nodes_that_all_passed_lately_are_healthy_at_once() -> None:
    staged = Stage()
    staged.add_nodes(*SIX, created=NOW - timedelta(days=1))
    passed_before(staged, *SIX)
    staged.add_check(nodes=SIX, freshSeconds=60)
    await staged.reconcile()
    assert set(staged.verdicts().values()) == {"Healthy"} and staged.status()["phase"] == "Succeeded"
    assert not staged.stores.store(ELASTICWORKERS).list()


async def test_only_the_others_are_tested_with_as_many_partners() -> None:
    staged = Stage(agents=broken("node-5"))
    staged.add_nodes(*SIX, created=NOW - timedelta(days=1))
    passed_before(staged, "node-1", "node-2", "node-3", "node-4")
    staged.add_check(nodes=SIX, freshSeconds=60)
    check = await staged.play()
    assert check.status.nodes == ["node-1", "node-2", "node-3", "node-5", "node-6"]
    assert check.status.workers == [0, 1, 2, 3, 4]
    assert check.status.reused == ["node-1", "node-2", "node-3"] and check.status.faulty_nodes == ["node-5"]
    told = "5 nodes, 3 of them have passed lately; 1 more passed lately and are left out"
    assert ("CheckStarted", told) in staged.said("c")


async def test_witnesses_are_as_old_as_their_last_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    fleets = []

    def seen(history: CheckHistory, fleet: Sequence[Node], settings: Settings) -> ProbeRound | Diagnosis:
        fleets.append(fleet)
        return next_step(history, fleet, settings)

    monkeypatch.setattr("reconcilers.nodecheck.reconciler.next_step", seen)
    staged = Stage(agents=broken("node-6"))
    staged.add_nodes(*SIX, created=NOW - timedelta(days=9))
    passed_before(staged, *SIX[:5], seconds_ago=3 * 86_400)
    staged.add_check(nodes=SIX, freshSeconds=604_800)
    await staged.play()
    assert fleets and [round(node.vouch_age_seconds) for node in fleets[-1]] == [*[259_200] * 3, 0]


# --- checks of a job's nodes ------------------------------------------------------------------------------------


def job_stage(agents: Agents | None = None, workers: int = 4, active: str | None = "c", **spec: Any) -> Stage:
    staged = Stage(agents=agents or Agents())
    staged.add_nodes(*SIX)
    staged.add_job(replicas=workers, **({"activeCheck": active} if active else {}))
    for index in range(workers):
        staged.add_worker(index, SIX[index])
    staged.add_check(jobName="j", **spec)
    return staged


async def test_job_check_waits_until_the_job_gives_its_workers_to_it() -> None:
    staged = job_stage(active=None)
    assert await staged.reconcile() is None
    assert staged.condition("Running")["reason"] == "WaitingForJob"
    staged.update(ELASTICJOBS, "j", {"status": {"activeCheck": "c"}})
    check = await staged.play()
    assert (check.status.nodes, check.status.workers, check.status.incarnations) == (
        SIX[:4],
        [0, 1, 2, 3],
        [1] * 4,
    )
    assert not staged.said("j"), "the job's reconciler tells of it"
    assert len(staged.stores.store(ELASTICWORKERS).list()) == 4


async def test_job_check_waits_until_its_workers_have_stopped() -> None:
    staged = job_stage()
    world = {"round": 1, "phase": "Formed", "members": [0, 1, 2, 3], "incarnations": [1] * 4}
    staged.update(ELASTICJOBS, "j", {"status": {"rendezvous": world}})
    await staged.reconcile()
    assert staged.condition("Running")["reason"] == "WaitingForWorkers"
    staged.update(ELASTICJOBS, "j", {"status": {"rendezvous": {"phase": "Reforming"}}})
    staged.update(ELASTICWORKERS, "j-worker-0", {"status": {"agent": {"state": "Running"}}})
    await staged.reconcile()
    assert staged.status()["phase"] == "Pending"
    staged.update(ELASTICWORKERS, "j-worker-0", {"status": {"agent": {"state": "Failed"}}})
    await staged.play()
    assert set(staged.verdicts().values()) == {"Healthy"}


async def test_job_check_begins_without_those_who_do_not_come_in_time() -> None:
    staged = job_stage(timeoutSeconds=60)
    staged.update(ELASTICWORKERS, "j-worker-3", {"status": {"agent": {"state": "Running"}}})
    check = await staged.play()
    assert check.status.workers == [0, 1, 2] and 60 <= staged.seconds < 61


async def test_slot_of_another_type_with_the_same_index_speaks_for_no_node() -> None:
    staged = job_stage()
    first = staged.get(ELASTICWORKERS, "j-worker-0")
    metadata = first["metadata"] | {"name": "j-evaluator-0", "uid": "uid-evaluator"}
    helper = first | {"metadata": metadata, "spec": first["spec"] | {"type": "evaluator"}}
    for _ in range(3):
        await staged.reconcile()
        staged.act()
        staged.put(ELASTICWORKERS, helper)  # the newest in every list
    await staged.play()
    assert set(staged.verdicts().values()) == {"Healthy"}


async def test_job_check_fails_if_nobody_is_there_or_the_job_has_finished() -> None:
    staged = Stage()
    staged.add_job(activeCheck="c")
    staged.add_check(jobName="j", timeoutSeconds=30)
    await staged.play()
    assert staged.condition("Failed")["reason"] == "NoWorkers"
    staged = job_stage()
    await staged.reconcile()
    staged.update(ELASTICJOBS, "j", {"status": {"phase": "Failed"}})
    await staged.play()
    assert staged.condition("Failed")["reason"] == "JobFinished" and not staged.status()["faultyNodes"]


async def test_check_of_a_job_whose_workers_are_in_groups_names_a_group() -> None:
    staged = job_stage(active=None)
    staged.update(ELASTICJOBS, "j", {"spec": {"elasticPolicy": {"replicaGroups": {"workers": 2}}}})
    check = await staged.play()
    assert staged.condition("Failed")["reason"] == "NoWorkers" and check.status.phase == "Failed"
    assert staged.condition("Failed")["message"].endswith("such as j-group-0")


async def test_worker_that_was_relaunched_withdraws_its_node() -> None:
    staged = job_stage()
    await staged.reconcile()
    staged.end("j-worker-1", "OOM", "out of memory")
    staged.update(
        ELASTICWORKERS,
        "j-worker-1",
        {"spec": {"incarnation": 2}, "status": {"observedIncarnation": 2, "phase": "Pending"}},
    )
    check = await staged.play()
    assert check.status.inconclusive == ["node-2"] and "out of memory" in check.status.withdrawn[0].message


async def test_check_of_a_job_that_was_deleted_and_applied_again_has_failed() -> None:
    """The job waits for no check of an earlier one, so such a check would wait for ever."""
    staged = Stage()
    staged.add_job()
    staged.add_check(jobName="j", created=NOW - timedelta(seconds=1))
    await staged.reconcile()
    assert staged.status()["phase"] == "Failed"
    assert staged.condition("Failed")["reason"] == "JobNotFound"
    staged.add_check("of-the-same-second", jobName="j")
    await staged.reconcile("of-the-same-second")
    assert staged.condition("Running", "of-the-same-second")["reason"] == "WaitingForJob"


async def test_suspicion_makes_earlier_passes_of_a_jobs_nodes_worthless() -> None:
    """Worthless is also the pass of a check that went on when hardware was suspected."""
    for suspected_ago, took, tested in ((5, 0, True), (20, 0, False), (20, 15, True), (20, 5, False)):
        staged = Stage()
        staged.add_nodes(*SIX, created=NOW - timedelta(days=1))
        passed_before(staged, "node-1", "node-2", took=took)
        staged.add_job(activeCheck="c", suspectedAt=ago(suspected_ago))
        staged.add_worker(0, "node-1")
        staged.add_worker(1, "node-2")
        staged.add_check(jobName="j", freshSeconds=60)
        check = await staged.play()
        assert bool(check.status.rounds) is tested


# --- many nodes ---------------------------------------------------------------------------------------------


async def test_a_check_whose_names_have_no_room_is_refused_with_a_sentence() -> None:
    staged = stage([f"{'a-very-long-name-' * 5}{i}" for i in range(10_000)])
    await staged.reconcile()
    failed = staged.condition("Failed")
    assert staged.status()["phase"] == "Failed" and failed["reason"] == "TooManyNodes"
    assert "10000 nodes do not fit into one NodeCheck" in failed["message"]


@pytest.mark.usefixtures("first_rotation")
async def test_a_check_that_has_no_room_for_another_round_ends_with_what_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    staged = stage(agents=broken("node-6"))
    while not staged.status().get("round"):
        await staged.reconcile()
        staged.act()
    monkeypatch.setattr("reconcilers.nodecheck.size.MAX_BYTES", 1)
    check = await staged.play()
    assert check.status.inconclusive == ["node-1", "node-6"] and len(check.status.rounds) == 1


# --- a controller that is killed at any moment ---------------------------------------------------------------------


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[str], Agents]:
    nodes = [f"n{i}" for i in range(draw(st.integers(1, 9)))]
    some = st.sets(st.sampled_from(nodes), max_size=3)
    bad, mute, ill, unable = draw(some), draw(some), draw(some), draw(some)
    flaky = draw(st.dictionaries(st.integers(1, 4), some, max_size=2))

    def local(node: str) -> list[dict[str, Any]] | None:
        if node in mute:
            return None
        return BAD if node in ill else NO_GPU if node in unable else GOOD

    def passes(round_: int, members: Sequence[str]) -> bool:
        return not (bad | flaky.get(round_, set())) & {*members}

    return nodes, Agents(local=local, passes=passes, silent_in_pairs=frozenset(draw(some)))


@settings(max_examples=20, deadline=None)
@given(fleets(), st.lists(st.booleans(), max_size=60), st.sampled_from([0, 1, MOST_NAMED]))
def test_controller_that_is_killed_at_any_moment_goes_on_to_the_same_verdicts(
    fleet: tuple[list[str], Agents], deaths: list[bool], named: int
) -> None:
    """Whatever decides is in sets: lists of names and reasons may have room for one entry alone."""
    nodes, agents = fleet
    undisturbed = stage(nodes, agents, timeoutSeconds=30)
    expected = asyncio.run(undisturbed.play())
    killed = stage(nodes, agents, timeoutSeconds=30)
    ahead = iter(deaths)
    killed.crash = lambda: next(ahead, False)
    with (
        patch("reconcilers.nodecheck.status.MOST_NAMED", named),
        patch("reconcilers.nodecheck.steps.MAX_GROUP_MESSAGES", named),
    ):
        found = asyncio.run(killed.play())
    assert found.status.node_sets == expected.status.node_sets
    assert killed.published == undisturbed.published
    if named == MOST_NAMED:
        assert found.status.rounds == expected.status.rounds
        assert found.status.node_results == expected.status.node_results


@settings(max_examples=20, deadline=None)
@given(fleets())
def test_nobody_who_answers_and_passes_is_ever_called_faulty(fleet: tuple[list[str], Agents]) -> None:
    nodes, agents = fleet
    agents.passes = lambda round_, members: True
    staged = stage(nodes, agents, timeoutSeconds=30)
    asyncio.run(staged.play())
    for node in nodes:
        well = agents.local(node) == GOOD and node not in agents.silent_in_pairs
        assert staged.verdicts()[node] == "Healthy" if well else True


@pytest.mark.usefixtures("beside")
def test_what_other_checks_want_is_looked_up_whatever_their_number_and_the_size_of_the_cluster() -> None:
    """Checks for each node of a cluster, made by a loop in a shell, are looked at by each of them."""

    def cost(nodes: int, checks: int, *, begun: bool) -> int:
        staged = Stage()
        staged.add_namespace(NAMESPACE, **{names.LABEL_MAY_CORDON: "true"})
        staged.add_nodes(*(f"node-{i}" for i in range(nodes)))
        for i in range(checks):
            staged.add_check(name=f"c{i}", nodes=[f"node-{i}"])
            if begun and i:
                staged.update(NODECHECKS, f"c{i}", {"status": {"phase": "Running", "nodes": [f"node-{i}"]}})
        view = ClaimView(staged.stores)
        mine = view.claim_of(NodeCheck.model_validate(staged.get(NODECHECKS, "c0")), ["node-0"])
        asyncio.run(view.claims(mine))  # parses them
        return calls(lambda: asyncio.run(view.claims(mine)))

    assert cost(2_000, 400, begun=True) <= 1.1 * cost(
        20, 20, begun=True
    )  # the event loop has calls of its own
    assert cost(2_000, 400, begun=False) <= cost(100, 2 * MOST_WAITING, begun=False) + 10 * 400


def test_a_look_at_a_check_of_one_node_costs_the_same_in_a_large_cluster() -> None:
    def cost(nodes: int) -> int:
        staged = Stage()
        staged.add_nodes(*(f"node-{i}" for i in range(nodes)))
        staged.add_check(name="one", nodes=["node-0"])
        return calls(lambda: asyncio.run(staged.reconcile("one")))

    cost(1)
    assert cost(1_000) <= cost(10) + 100  # the event loop has calls of its own
