"""Who is lost that peers cannot reach: two witnesses suffice, and none does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers.observed.reach import (
    SETTLING_SECONDS,
    Peer,
    ReachEvidence,
    ReachVerdict,
    address_of,
    judge,
    peers_without,
    silent_peers,
)

JSON = dict[str, Any]
A, B, C = Peer("j-worker-0", "node-0"), Peer("j-worker-2", "node-2"), Peer("j-worker-3", "node-0")
BEAT = 10.0
LOST, LIVES, UNDECIDED = ReachVerdict.LOST, ReachVerdict.LIVES, ReachVerdict.UNDECIDED


def seen(*peers: Peer, **changes: Any) -> ReachEvidence:
    values = {"seconds": 1.0, "unheard_seconds": 5.0, "renewal_seconds": BEAT, "is_dialled": True}
    return ReachEvidence(peers, **(values | changes))


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        (seen(A), LIVES),
        (seen(A, B), LOST),
        (seen(A, C), LIVES),  # of one node: one witness
        (seen(A, answers=False), LOST),
        (seen(A, B, answers=True), LIVES),
        (seen(A, unheard_seconds=20.0), LOST),
        (seen(A, unheard_seconds=20.0, answers=True), LIVES),
        (seen(answers=False, unheard_seconds=60.0), LIVES),  # no peer says so
        (seen(A, B, seconds=SETTLING_SECONDS / 2), UNDECIDED),
        (seen(A, B, is_dialled=False), UNDECIDED),
        (seen(A, B, seconds=30.0, unheard_seconds=5.0), LIVES),  # its Lease was renewed since
    ],
)
def test_two_witnesses_suffice(evidence: ReachEvidence, verdict: ReachVerdict) -> None:
    assert judge(evidence) is verdict


@given(
    st.lists(st.builds(Peer, st.text(max_size=2), st.sampled_from(["n", "m"])), max_size=4),
    st.floats(0, 100),
    st.floats(0, 100),
    st.booleans(),
    st.sampled_from([None, True, False]),
)
def test_nobody_is_lost_by_one_witness_nor_who_answers_or_was_heard_since(
    peers: list[Peer], seconds: float, unheard: float, is_dialled: bool, answers: bool | None
) -> None:
    evidence = ReachEvidence(peers, seconds, unheard, BEAT, is_dialled, answers)
    if judge(evidence) is LOST:
        assert len(evidence.witnesses) >= 2 and peers
        assert answers is not True and is_dialled
        assert unheard >= seconds - 0.2


def worker(index: int, *silent: int, **status: Any) -> JSON:
    report = {
        "incarnation": 1,
        "podUid": f"pod-{index}",
        "silentPeers": [{"index": each, "incarnation": 1} for each in silent],
    }
    values = {
        "phase": "Running",
        "observedIncarnation": 1,
        "podUid": f"pod-{index}",
        "nodeName": f"node-{index}",
    }
    return {
        "metadata": {"name": f"j-worker-{index}"},
        "spec": {"type": "worker", "index": index, "incarnation": 1},
        "status": values | {"agent": report} | status,
    }


def test_who_is_silent_for_each_other_lives() -> None:
    assert peers_without(worker(1), [worker(0, 1), worker(2, 1)]) == [A, B]
    assert peers_without(worker(1, 0), [worker(0, 1), worker(2, 1)]) == [B], "the link to worker 0 is broken"
    assert peers_without(worker(1, 0, 2), [worker(0, 1), worker(2, 1)]) == []


def test_the_report_of_a_pod_that_is_gone_counts_no_more() -> None:
    assert silent_peers(worker(0, 1)) == [(1, 1)]
    for status in ({"phase": "Failed"}, {"podUid": "another"}, {"observedIncarnation": 2}, {"agent": None}):
        assert silent_peers(worker(0, 1, **status)) == []
    assert silent_peers({"spec": {"type": "worker", "incarnation": 1}}) == []


def test_what_a_report_names_is_of_one_incarnation() -> None:
    later = worker(1)
    later["spec"]["incarnation"] = 2
    assert peers_without(later, [worker(0, 1)]) == []


@pytest.mark.parametrize(
    ("pod_uid", "report_uid", "status_uid", "address"),
    [
        ("pod-1", "pod-1", "pod-1", ("10.0.0.7", 4711)),
        ("pod-2", "pod-1", "pod-1", None),  # the next Pod of that name has another agent
        ("pod-2", "pod-2", "pod-1", None),
    ],
)
def test_a_port_is_that_of_the_pod_whose_agent_reports_it(
    pod_uid: str, report_uid: str, status_uid: str, address: tuple[str, int] | None
) -> None:
    of_worker = {"status": {"podUid": status_uid, "agent": {"podUid": report_uid, "storePort": 4711}}}
    pod: JSON = {"metadata": {"uid": pod_uid}, "status": {"podIP": "10.0.0.7"}}
    assert address_of(of_worker, pod) == address
    for unknown in ({}, {"status": {}}, {"status": {"agent": {"storePort": 4711}}}):
        assert address_of(unknown, pod) is None
    assert address_of(of_worker, pod | {"status": {}}) is None
