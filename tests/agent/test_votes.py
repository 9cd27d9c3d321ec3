"""Votes of an agent: where there can be none, and when their time is over."""

from __future__ import annotations

import select
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from agent.facts.world import AgentVerb, AgentWorld, Member, NextAction
from agent.membership import RoundStanding, WorldMembership
from agent.supervision import elastic_agent
from agent.supervision.elastic_agent import DlrElasticAgent
from agent.supervision.leaving import VoteOutcome
from agent.supervision.votes import Votes
from agent.survival.kept import KeptProcesses
from agent.torch_compat.elastic import LocalElasticAgent
from crds.checkpoint_files import KeptIn
from crds.phases import RendezvousPhase


@pytest.mark.parametrize("scarce", ["records", "epoll"])
def test_without_a_ballot_there_are_no_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scarce: str
) -> None:
    listener: Any = SimpleNamespace(offer=lambda *_: None, withdraw=lambda _: None)
    reporter: Any = None
    orphans: Any = SimpleNamespace()
    me = Member(0, 1)
    membership = cast(WorldMembership, SimpleNamespace(member=me))
    votes = Votes(membership, reporter, listener, None, KeptProcesses(None, None, orphans), 30.0, 1.0)
    votes.meet(AgentWorld(1, RendezvousPhase.FORMED, (me,), 1))
    line = votes._inbox
    assert line is not None
    record = tmp_path / "record"
    if scarce == "epoll":
        record.write_bytes(bytes(4096))

        def too_many(*_: Any) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(select, "epoll", too_many)
    votes.begin([record])
    assert votes.fds() == []
    assert line.fileno() == -1


def test_processes_get_the_signal_that_the_agent_got_and_a_second_one_begins_no_new_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, stopped, waiting, now = [], [], list[float](), [100.0]

    def stop(_processes: object, begun_at: float) -> VoteOutcome:
        begun.append(begun_at)
        now[0] += 1.0
        if len(begun) == 1:
            raise SignalException("a second one", sigval=signal.SIGTERM)
        return VoteOutcome.OFF

    agent = DlrElasticAgent.__new__(DlrElasticAgent)
    agent.__dict__ |= {
        "_processes": SimpleNamespace(
            stop=lambda *args: stopped.append(args), join=lambda timeout_seconds: None
        ),
        "_votes": SimpleNamespace(stop=stop, end=lambda: None, hand_over=lambda seconds: None),
        "_kept": SimpleNamespace(stop=waiting.append),
        "_save_last": waiting.append,
        "_shutdown_at": None,
        "_stop_grace_seconds": 10.0,
    }
    monkeypatch.setattr(elastic_agent, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(LocalElasticAgent, "_shutdown", lambda _: None)
    with pytest.raises(SignalException):
        agent._shutdown(signal.SIGUSR2)
    agent._shutdown(signal.SIGUSR2)
    assert begun[0] == begun[1]
    assert stopped == [(signal.SIGUSR2, 10.0 - 2.0)]
    assert waiting == [10.0 - 2.0] * 2, "what waits for a round gets what is left of the grace"


@pytest.mark.parametrize(("tier", "told"), [(KeptIn.STORAGE, 1), (None, 0)])
def test_the_memory_is_told_of_a_plan_whether_or_not_a_vote_comes_of_it(
    tier: KeptIn | None, told: int
) -> None:
    """Processes that still import torch take part in none. What breaks a world, or hangs, is no plan."""
    plans: list[None] = []
    standing = SimpleNamespace(planned_tier=lambda *_: tier)
    membership: Any = SimpleNamespace(standing=standing)
    unused: Any = None
    memory: Any = SimpleNamespace(replicas=SimpleNamespace(peers=None), note_plan=lambda: plans.append(None))
    processes: Any = None
    action = NextAction(AgentVerb.STAND_BY, 2)
    votes = Votes(membership, unused, unused, memory, unused, 1.0, 1.0)
    assert votes.follow(processes, action, 0.0) is VoteOutcome.OFF
    assert len(plans) == told


@pytest.mark.parametrize(
    ("joined", "round_", "broken", "after_failure"),
    [(4, 6, 4, True), (4, 5, 3, False), (None, 5, 4, True), (None, 6, 4, False)],
)
def test_a_round_comes_after_a_failure_if_the_last_one_joined_broke(
    joined: int | None, round_: int, broken: int, after_failure: bool
) -> None:
    """Rounds between them were superseded before all had met."""

    def world(number: int) -> AgentWorld:
        return AgentWorld(number, RendezvousPhase.FORMED, (Member(0, 1),), broken_round=broken)

    standing = RoundStanding(Member(0, 1), None if joined is None else world(joined))
    assert standing.comes_after_failure(world(round_)) is after_failure
