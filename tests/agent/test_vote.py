"""What an agent decides in a vote, case by case. `tests/agent/played/test_votes.py` plays whole rounds."""

from __future__ import annotations

from typing import Any

import pytest

from agent.facts.world import AgentVerb, NextAction
from agent.supervision.ballot import Ballot
from agent.supervision.course import HURRY_GRACE_SECONDS
from agent.supervision.leaving import Graces, LeaveVote, StopLate, VoteOutcome, WaitForVote, decide, may_stay
from agent.supervision.live_ballot import BadMessageError, Frames, pack
from agent.supervision.vote import Chair, LocalProcesses, Message, MessageKind, Voter, VoteResult
from crds.checkpoint_files import KeptIn
from crds.progress_record import EXIT_LEFT, is_to_leave, is_to_stay, leave_at, stay_at, tier_of
from dlr.checkpoint.leaving import next_move

LOCAL = LocalProcesses(True, True, (6,), KeptIn.MEMORY)
GRACES = Graces(20.0, 2.0)


def chair_of(size: int) -> Chair:
    chair = Chair(size)
    for rank in range(size):
        chair.join(rank)
    return chair


def vote(**changed: Any) -> LeaveVote:
    """A vote for step 8 that two processes take part in; one has arrived there."""
    facts: dict[str, Any] = {
        "is_open": True,
        "wish": True,
        "agreed": VoteResult(8, KeptIn.MEMORY),
        "lost_seconds": None,
        "peers_are_dead": False,
        "exit_codes": {},
        "ended": (8, 7),
        "seconds": 1.0,
        "wake_seconds": None,
    }
    return LeaveVote(**facts | changed)


@pytest.mark.parametrize(
    ("asked", "answered"), [(KeptIn.STORAGE, KeptIn.MEMORY), (KeptIn.MEMORY, KeptIn.STORAGE)]
)
def test_the_safer_tier_counts_until_the_vote_is_decided(asked: KeptIn, answered: KeptIn) -> None:
    chair = chair_of(2)
    chair.receive(0, Message(MessageKind.ASK, tier=KeptIn.MEMORY), 0.0)
    chair.receive(1, Message(MessageKind.ENDED, 1, 7, answered), 0.0)
    chair.receive(1, Message(MessageKind.ASK, tier=asked), 0.0)
    decided = chair.receive(0, Message(MessageKind.ENDED, 1, 6, KeptIn.MEMORY), 0.0)
    assert decided == [(rank, Message(MessageKind.LEAVE, 1, 8, KeptIn.STORAGE)) for rank in (0, 1)]
    assert chair.receive(1, Message(MessageKind.ASK, tier=KeptIn.STORAGE), 0.0) == []


def test_the_tier_that_was_asked_for_in_a_vote_that_is_off_counts_in_the_next() -> None:
    voter = Voter()
    voter.ask(KeptIn.STORAGE, 0.0)
    for message in (Message(MessageKind.HOLD, 1), Message(MessageKind.OFF, 1), Message(MessageKind.HOLD, 2)):
        voter.receive(message, 0.0, LOCAL)
    voter.note_order(0.0)
    assert voter.look(1.0, LOCAL) == [Message(MessageKind.ENDED, 2, 6, KeptIn.STORAGE)]


@pytest.mark.parametrize(
    "message",
    [
        Message(MessageKind.ASK, tier=KeptIn.STORAGE),
        *(Message(MessageKind.JOIN, rank) for rank in (-1, 0, 1, 3)),
    ],
)
def test_a_connection_that_is_of_no_further_agent_is_closed(message: Message) -> None:
    ballot = Ballot(3, None)
    assert ballot.look(0.0, LOCAL, [(5, Message(MessageKind.JOIN, 1))]) == []
    assert ballot.look(0.0, LOCAL, [(6, message)]) == [(6, None)]
    assert not ballot.is_open


def test_messages_may_arrive_in_parts_and_no_others_are_taken() -> None:
    sent = [Message(MessageKind.HOLD, 3), Message(MessageKind.LEAVE, 3, 8, KeptIn.STORAGE)]
    data, frames = b"".join(map(pack, sent)), Frames()
    assert [message for at in range(0, 64, 16) for message in frames.feed(data[at : at + 16])] == sent
    for bad in (b"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n", pack(Message(MessageKind.ASK))):
        with pytest.raises(BadMessageError):
            Frames().feed(bad)


@pytest.mark.parametrize(
    ("changed", "decision"),
    [
        ({}, WaitForVote(9.0)),
        ({"wake_seconds": 0.5}, WaitForVote(0.5)),
        ({"is_open": False}, VoteOutcome.OFF),
        ({"agreed": None}, WaitForVote(9.0)),
        ({"agreed": None, "seconds": 10.0}, VoteOutcome.OFF),
        ({"agreed": None, "seconds": 10.0, "wish": False, "wake_seconds": 2.0}, WaitForVote(2.0)),
        ({"agreed": None, "peers_are_dead": True}, VoteOutcome.OFF),
        ({"exit_codes": {0: EXIT_LEFT, 1: 1}}, VoteOutcome.FAILED),
        ({"exit_codes": {0: EXIT_LEFT, 1: 0}}, VoteOutcome.LEFT),
        ({"seconds": 10.0}, StopLate(10.0)),
        ({"ended": (8, 8), "seconds": 21.0}, StopLate(0.0)),
        ({"peers_are_dead": True}, StopLate(2.0)),
        ({"peers_are_dead": True, "ended": (8, 8)}, WaitForVote(9.0)),
        ({"lost_seconds": 0.0}, StopLate(2.0)),
        ({"lost_seconds": 1.0, "ended": (8, 8)}, WaitForVote(HURRY_GRACE_SECONDS - 1.0)),
        ({"lost_seconds": HURRY_GRACE_SECONDS, "ended": (8, 8)}, StopLate(2.0)),
    ],
)
def test_half_of_the_grace_is_for_the_way_and_all_of_it_for_saving(
    changed: dict[str, Any], decision: WaitForVote | StopLate | VoteOutcome
) -> None:
    assert decide(vote(**changed), GRACES) == decision


def test_a_process_that_ends_with_0_has_left_if_it_had_arrived() -> None:
    assert vote(exit_codes={0: 0, 1: 0}).have_left == [0]
    assert vote(exit_codes={0: EXIT_LEFT, 1: EXIT_LEFT}).have_left == [0, 1]
    assert vote(exit_codes={0: 0}, agreed=None).have_left == []


@pytest.mark.parametrize("tier", list(KeptIn))
def test_who_stays_saves_at_the_same_step_and_in_the_same_tier_as_who_leaves(tier: KeptIn) -> None:
    for order, stays in ((leave_at(8, tier), False), (stay_at(8, tier), True)):
        assert (is_to_stay(order), tier_of(order)) == (stays, tier)
        assert [is_to_leave(order, step) for step in (7, 8, 9)] == [False, True, True]
        assert next_move(order, 1, 8, 0.0) == tier.name.lower()
    assert not any(is_to_stay(order) for order in (0, -5))


@pytest.mark.parametrize(("stay", "step"), [(True, 8), (False, 8), (True, 0)])
def test_whether_processes_stay_is_decided_with_the_step(stay: bool, step: int) -> None:
    voter, local = Voter(), LOCAL._replace(stay=stay)
    voter.receive(Message(MessageKind.HOLD, 1), 0.0, local)
    voter.note_order(0.0)
    voter.look(1.0, local)
    voter.receive(Message(MessageKind.LEAVE, 1, step, KeptIn.MEMORY), 1.0, local)
    expected = stay and step > 0
    assert voter.order == (stay_at if expected else leave_at)(step, KeptIn.MEMORY)
    voter.look(2.0, local._replace(stay=not stay))
    assert is_to_stay(voter.order) is expected


def test_an_agent_whose_processes_have_all_left_and_live_on_goes_on_without_them() -> None:
    assert isinstance(decide(vote(living=frozenset({0})), GRACES), WaitForVote)
    both = vote(living=frozenset({0, 1}))
    assert decide(both, GRACES) is VoteOutcome.STAYED and both.have_left == [0, 1]
    assert decide(vote(living=frozenset({0}), exit_codes={1: EXIT_LEFT}), GRACES) is VoteOutcome.STAYED
    assert decide(vote(living=frozenset({0}), exit_codes={1: 1}), GRACES) is VoteOutcome.FAILED
    assert decide(vote(lost=True), GRACES) is VoteOutcome.FAILED


def test_nobody_stays_whose_job_is_over_or_whose_next_world_has_another_size() -> None:
    start, wait = NextAction(AgentVerb.START, 2), NextAction(AgentVerb.WAIT)
    assert may_stay(wait, 2, None) and may_stay(start, 2, 2)
    assert not may_stay(start, 2, 1) and not may_stay(NextAction(AgentVerb.EXIT), 2, None)
