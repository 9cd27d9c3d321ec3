from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from controller import slices
from controller.slices import LARGE
from crds.elasticworker import WorkerPhase
from crds.nodecheck import NodeCheck
from reconcilers.findings.finished import FinishedChecks, newest_on
from reconcilers.job.workers import plan_relaunches
from reconcilers.nodecheck.job_checks import JobChecks, JobChecksView, standing_of
from reconcilers.nodecheck.view import CheckView
from reconcilers.runtime.kinds import NODECHECKS
from tests.counting import calls
from tests.reconcilers.build import NOW, check, job, later, node_sets
from tests.reconcilers.check_stage import Stage as CheckStage
from tests.reconcilers.job_stage import all_checks, at, checked_job, job_check
from tests.reconcilers.test_rendezvous import formed

WORKERS = [at(0, "a"), at(1, "b")]
AFTER = later(7_200)
"""When passes are no longer fresh."""


def others(ended_seconds: float = 0.0, **verdicts: str) -> NodeCheck:
    """A check of nodes, made by a person."""
    status = {
        "phase": "Succeeded",
        "completionTime": later(ended_seconds),
        "nodes": list(verdicts),
        "nodeSets": node_sets(list(verdicts), verdicts),
    }
    return check(nodes=list(verdicts), status=status)


def unchecked(*checks: NodeCheck, workers: list = WORKERS, now: object = AFTER, **more: object) -> set[int]:
    standing = standing_of(checked_job(2), workers, all_checks(*checks), more.get("suspected_at"), now)
    return set(standing.unvetted)


BOTH = job_check(1, of=WORKERS)
PASSED = [others(a="Healthy", b="Healthy"), BOTH]
FAILED = job_check(1, "Failed")
SHARED = [at(0, "a"), at(1, "a")]
"""Two workers on one node."""
LATE = [at(0, "a"), at(1, "c", 2, lastExit={"incarnation": 1, "exitClass": "NodeLost", "time": later(60)})]
"""One of two whose Pod came after the first failed check."""


@pytest.mark.parametrize(
    ("checks", "more", "expected"),
    [
        ([], {}, {0, 1}),
        ([others(a="Healthy")], {"now": later(60)}, {1}),
        ([others(a="Healthy")], {}, {0, 1}),
        (PASSED, {"now": later(60), "suspected_at": later(5)}, {0, 1}),
        (PASSED, {"now": later(60), "suspected_at": NOW}, set()),
        ([BOTH], {}, set()),
        ([job_check(1, of=WORKERS, a="Inconclusive", b="Straggler")], {}, set()),
        ([BOTH], {"workers": [at(0, "a"), at(1, "b", incarnation=2)]}, {1}),
        ([BOTH], {"workers": [at(0, "a"), at(1, "c")]}, {1}),
        ([job_check(1, of=SHARED[:1])], {"workers": SHARED}, set()),
        ([job_check(1, of=SHARED[:1], workers=[0])], {"workers": SHARED}, {1}),
        ([FAILED], {}, set()),
        ([job_check(1, "Failed", workers=[0])], {}, {1}),
        ([FAILED], {"suspected_at": later(1)}, {0, 1}),
        ([FAILED], {"workers": LATE}, {1}),
        ([job_check(1, "Failed", ended=later(90))], {"workers": LATE}, set()),
    ],
)
def test_unchecked_are_those_without_a_fresh_pass_or_a_check_of_this_pod_on_this_node(
    checks: list[NodeCheck], more: dict[str, Any], expected: set[int]
) -> None:
    """Of anybody's passes none from before a suspicion; a check that could not be carried out holds nobody up."""
    assert unchecked(*checks, **more) == expected


def test_the_verdict_on_a_node_counts_for_all_the_checks_workers_there() -> None:
    guilty = all_checks(job_check(1, of=SHARED[:1], a="Faulty"))
    assert set(standing_of(job(), SHARED, guilty, None, AFTER).faulty) == {0, 1}


def test_a_later_accusation_by_others_calls_for_a_check_but_moves_nobody() -> None:
    checks = [job_check(1, of=WORKERS), others(60, a="Faulty")]
    found = standing_of(checked_job(2), WORKERS, all_checks(*checks), None, AFTER)
    assert found.unvetted == {0} and not found.faulty


def test_found_faulty_by_its_own_check_a_worker_has_to_leave_unless_the_node_passed_since() -> None:
    guilty = job_check(1, of=WORKERS, b="Faulty")
    for any_job in (job(), checked_job(2)):
        found = standing_of(any_job, WORKERS, all_checks(guilty), None, AFTER)
        assert set(found.faulty) == {1} and "digits-check-1 found b faulty" in found.faulty[1]
    cleared = standing_of(job(), WORKERS, all_checks(guilty, others(60, b="Healthy")), None, AFTER)
    assert not cleared.faulty
    moved = [at(0, "a"), at(1, "c", incarnation=2)]
    assert not standing_of(job(), moved, all_checks(guilty), None, AFTER).faulty


def test_slow_by_the_newest_verdict_and_only_if_the_job_wants_so() -> None:
    slow = job_check(1, of=WORKERS, b="Straggler")
    excluding = checked_job(2, {"excludeStragglers": True})
    assert standing_of(excluding, WORKERS, all_checks(slow), None, AFTER).slow == {1}
    assert not standing_of(checked_job(2), WORKERS, all_checks(slow), None, AFTER).slow
    passed = all_checks(slow, others(60, b="Healthy"))
    assert not standing_of(excluding, WORKERS, passed, None, AFTER).slow


def test_nothing_is_wanted_of_a_job_without_node_checks() -> None:
    found = standing_of(job(replicas=2), WORKERS, JobChecks(), None, NOW)
    assert not found.unvetted and not found.faulty and not found.slow


def reading_beside(nodes: int) -> int:
    """What it takes to read the checks of a job of two workers, beside finished checks of so many other nodes."""
    stage = CheckStage()
    stage.add_nodes("a", "b")
    for number in range(3):
        verdict = {
            "phase": "Succeeded",
            "completionTime": NOW.isoformat(),
            "nodes": [f"n{i}" for i in range(nodes)],
        }
        stage.add_check(f"other-{number}", status=verdict, nodeSelector={})
    view = JobChecksView(stage.process.client, stage.stores)
    asyncio.run(view.of(checked_job(2), WORKERS))
    return calls(lambda: asyncio.run(view.of(checked_job(2), WORKERS)))


def test_reading_a_jobs_checks_does_not_pay_for_the_nodes_of_others() -> None:
    assert reading_beside(5_000) <= 2 * reading_beside(50)


@pytest.mark.parametrize(("created", "counts"), [(-60.0, True), (60.0, False)])
async def test_a_verdict_on_an_earlier_machine_of_a_nodes_name_says_nothing_of_the_next(
    created: float, counts: bool
) -> None:
    stage = CheckStage()
    stage.add_nodes("a")
    stage.add_nodes("b", created=later(created))
    sets = node_sets(["b"], {"b": "Faulty"})
    ended = {"phase": "Succeeded", "completionTime": NOW.isoformat(), "nodes": ["b"], "nodeSets": sets}
    stage.add_check("lab", status=ended, nodes=["b"])
    avoiding = at(0, "a")
    avoiding = avoiding.model_copy(update={"spec": avoiding.spec.model_copy(update={"faulty_nodes": ["b"]})})
    checks = await JobChecksView(stage.process.client, stage.stores).of(checked_job(1), [avoiding])
    standing = standing_of(checked_job(1), [avoiding], checks, None, AFTER)
    assert (standing.faulty_nodes, "b" in standing.cleared) == ((("b",), False) if counts else ((), True))


def test_what_is_kept_of_a_finished_check_is_of_its_newest_version_and_goes_with_it() -> None:
    stage = CheckStage()
    finished = FinishedChecks(stage.stores)
    ended = {"phase": "Succeeded", "completionTime": NOW.isoformat(), "nodes": ["a"]}
    for number in range(9):
        stage.add_check(f"c{number}", status=ended, nodeSelector={})
    (first, *_) = finished.on("a", "default")
    assert (
        first is finished.on("a", "default")[0]
        and first.verdicts["a"] == "Healthy"
        and len(finished.on("a", "default")) == 9
    )
    stage.update(NODECHECKS, "c0", {"status": {"nodeSets": node_sets(["a"], {"a": "Faulty"})}})
    newest = newest_on("a", finished.on("a", "default"))
    assert newest is not None and newest.verdicts["a"] == "Faulty" and finished.accused("default") == {"a"}
    for number in range(9):
        stage.remove(NODECHECKS, f"c{number}")
    assert finished.on("a", "default") == () and finished.accused("default") == set()
    stage.add_check("new", status=ended, nodeSelector={})
    finished.on("a", "default")
    assert len(finished._indexed_checks) == 1


def test_a_small_job_is_looked_at_beside_the_event_loop_where_checks_found_many_nodes_faulty() -> None:
    assert all_checks(others(a="Healthy", b="Faulty")).look_size == 0
    accused = others(0.0, **{f"n{number}": "Faulty" for number in range(1_000)})
    assert all_checks(accused).look_size >= LARGE


async def test_others_have_a_turn_while_fresh_passes_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    stage = CheckStage()
    nodes = [f"n{number}" for number in range(50)]
    stage.add_nodes(*nodes)
    ended = {"phase": "Succeeded", "completionTime": NOW.isoformat(), "nodes": nodes}
    stage.add_check("passed", status=ended, nodeSelector={})
    view, turns = CheckView(stage.stores, stage.process.client), 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(another())
    assert await view.fresh(check(freshSeconds=3_600), nodes, later(60)) == frozenset(nodes)
    task.cancel()
    assert turns >= len(nodes)


# --- relaunching ------------------------------------------------------------------------------------


def test_a_worker_on_a_faulty_node_gets_a_new_pod_at_once_off_all_faulty_nodes() -> None:
    checks = all_checks(others(-60, d="Faulty"), job_check(1, of=WORKERS, b="Faulty"))
    standing = standing_of(checked_job(2), WORKERS, checks, None, AFTER)
    (relaunch,) = plan_relaunches(WORKERS, formed(0), AFTER, standing).relaunches
    assert relaunch.worker.spec.index == 1 and relaunch.faulty_nodes == ("d", "b")
    assert "digits-check-1" in relaunch.reason and not relaunch.excluded_nodes


def test_every_relaunch_takes_the_newest_word_on_faulty_nodes() -> None:
    last_exit = {"incarnation": 1, "exitClass": "NodeLost", "time": NOW, "nodeName": "a"}
    dead = at(0, "a", phase=WorkerPhase.FAILED, lastExit=last_exit)
    known = dead.model_copy(update={"spec": dead.spec.model_copy(update={"faulty_nodes": ["b", "c"]})})
    checks = all_checks(others(-60, b="Faulty", d="Faulty"), others(60, b="Healthy"))
    standing = standing_of(checked_job(2), [known], checks, None, AFTER)
    (relaunch,) = plan_relaunches([known], formed(0), AFTER, standing).relaunches
    assert relaunch.faulty_nodes == ("c", "d"), "b passed since; nobody has said another word of c"


def test_of_many_faulty_nodes_the_newest_are_kept() -> None:
    nodes = [f"n{index:03}" for index in range(300)]
    checks = all_checks(*(others(index, **{node: "Faulty"}) for index, node in enumerate(nodes)))
    guilty = [
        at(0, "a", phase=WorkerPhase.FAILED, lastExit={"incarnation": 1, "exitClass": "OOM", "time": NOW})
    ]
    standing = standing_of(checked_job(1), guilty, checks, None, AFTER + timedelta(days=1))
    (relaunch,) = plan_relaunches(guilty, formed(0), AFTER, standing).relaunches
    assert relaunch.faulty_nodes == tuple(nodes[-256:])
