"""The ranks that are not as the others, in words: few, with their nodes, however many there are."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dlr.job.case import Case
from dlr.job.evidence import sections
from dlr.job.odd_ranks import MOST_NODES, odd_ranks
from dlr.job.verdict import verdict
from tests.cli.scripted import JSON, worker
from tests.cli.troubled import NOW, at, troubled_job

SILENT = {"type": "HeartbeatOnTime", "status": "False", "lastTransitionTime": at(290)}


def crowd(count: int, per_node: int = 8) -> list[JSON]:
    def report(index: int) -> JSON:
        progress = {"step": 400, "time": at(299), "secondsPerStep": 0.5}
        return {"incarnation": 1, "state": "Running", "progress": progress}

    return [worker(each, nodeName=f"node-{each // per_node}", agent=report(each)) for each in range(count)]


def found(workers: list[JSON], **status: Any) -> list[str]:
    return [str(each) for each in odd_ranks(case_of(workers, **status))]


def case_of(workers: list[JSON], **status: Any) -> Case:
    made = troubled_job(lastFailure=None, **status)
    made["status"]["rendezvous"] |= {"members": f"0-{len(workers) - 1}"}
    return Case(made, workers, [], NOW)


def test_ranks_that_are_alike_are_not_named() -> None:
    assert found(crowd(1_000)) == []
    starting = crowd(8)
    for each in starting:
        each["status"] |= {"phase": "Pending", "agent": {}}
    assert found(starting) == [], "none is later than the others"


def test_slow_and_late_ranks_of_a_thousand_are_named_with_their_nodes() -> None:
    workers = crowd(1_000)
    for each in workers[40:48]:
        each["status"]["agent"]["progress"] |= {"step": 200, "secondsPerStep": 0.9}
    assert found(workers) == [
        "Far behind: ranks 40-47 on node-5, up to 200 steps",
        "Slow: ranks 40-47 on node-5, up to 1.8 times the usual 0.5 s a step",
    ]
    case = case_of(workers)
    top = verdict(case)
    assert top.findings[0].sentence.text == (
        "8 of 1000 workers are far behind the others: ranks 40-47 on node-5, up to 200 steps."
    )
    (ranks,) = [each for each in sections(case, top) if each.title == "Ranks"]
    assert [each.text for each in ranks.sentences] == [
        "Slow: ranks 40-47 on node-5, up to 1.8 times the usual 0.5 s a step."
    ]


def test_a_lost_pod_is_told_from_one_that_moves_and_both_from_one_that_is_late() -> None:
    workers = crowd(8, per_node=1)
    for index, end in ((2, {"exitClass": "NodeLost"}), (3, {"exitClass": "Killed", "planned": True})):
        workers[index]["status"] |= {"phase": "Pending", "lastExit": {"incarnation": 1, **end}}
        workers[index]["spec"]["incarnation"] = 2
    workers[5]["status"] |= {"phase": "Pending"}
    assert found(workers) == [
        "Lost: rank 2 on node-2, NodeLost",
        "Moving: rank 3 on node-3, by a planned change",
        "Not up: rank 5 on node-5",
    ]


def test_a_rank_is_silent_that_misses_heartbeats_or_does_not_answer_its_neighbours() -> None:
    workers = crowd(8, per_node=1)
    workers[1]["status"]["conditions"] = [SILENT]
    workers[6]["status"]["agent"]["silentPeers"] = [
        {"index": 7, "incarnation": 1},
        {"index": 0, "incarnation": 4},
    ]
    assert found(workers) == ["Silent: ranks 1,7 on node-1, node-7"]


def test_in_a_hang_the_rank_is_named_for_which_the_others_wait() -> None:
    workers = crowd(4, per_node=1)
    for index, each in enumerate(workers):
        stacks = [{"rank": index, "inCollective": index != 3, "frames": ""}]
        each["status"]["agent"]["askedStacks"] = {"request": "x", "time": at(299), "stacks": stacks}
    hangs = {"rendezvous": {"round": 3, "phase": "Formed", "members": "0-3", "hangSince": at(298)}}
    assert found(workers) == []
    assert found(workers, **hangs) == ["Hanging: rank 3 on node-3, the others wait"]
    for each in workers:
        del each["status"]["agent"]["askedStacks"]
    workers[1]["status"]["agent"]["progress"]["step"] = 399
    assert found(workers, **hangs) == ["Furthest behind: rank 1 on node-1, at step 399"]


def test_an_ended_job_has_no_odd_ranks() -> None:
    workers = crowd(2)
    workers[0]["status"]["phase"] = "Failed"
    assert found(workers, phase="Failed") == []


@settings(max_examples=40)
@given(st.sets(st.integers(0, 299), max_size=150))
def test_however_many_are_odd_a_sentence_is_short_and_has_them_all(odd: set[int]) -> None:
    workers = crowd(300, per_node=1)
    for index in odd:
        workers[index]["status"]["conditions"] = [SILENT]
    silent = odd_ranks(case_of(workers))
    assert [each.indices for each in silent] == ([odd] if odd else [])
    assert all(len(each.text) < 200 and each.text.count("node-") <= MOST_NODES for each in silent)
