"""What an agent's silence means: the rule, over fleets whose nodes die, whose ways are cut, whose agents get stuck."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconcilers.observed.builder import heartbeat_seconds
from reconcilers.observed.silence import (
    FEW,
    LEAST_AGENT_SECONDS,
    Company,
    NodeLease,
    NodeWitness,
    Silence,
    SilenceVerdict,
    agent_timeout_seconds,
    company_of,
    judge_silence,
    witness_of,
)
from reconcilers.worker.silences import missed_after_seconds

TIMEOUT = 30.0
BEAT = 10.0
"""Agents and kubelets renew so often."""
WELL = NodeWitness("n", is_well=True)
READY = {"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
SOME = Company(heard=40, silent=1, few_seconds=TIMEOUT)


def verdict(seconds: float, node: NodeWitness = WELL, company: Company = SOME) -> SilenceVerdict:
    return judge_silence(seconds, TIMEOUT, node, company).verdict


def test_one_stuck_agent_among_others_that_are_heard_ends_after_three_time_outs() -> None:
    assert agent_timeout_seconds(TIMEOUT) == 90.0 == agent_timeout_seconds(5)
    assert verdict(90) is SilenceVerdict.AGENT_LOST
    assert verdict(90, company=Company(1, 1, TIMEOUT)) is SilenceVerdict.AGENT_LOST
    assert verdict(3600, company=Company(0, 1, TIMEOUT)) is SilenceVerdict.SILENT, "nobody else is heard"
    assert verdict(3600, company=Company(38, 2, TIMEOUT)) is SilenceVerdict.AGENT_LOST
    assert verdict(3600, company=Company(37, 2, TIMEOUT)) is SilenceVerdict.SILENT, "more than one in twenty"
    assert verdict(3600, company=Company(1, 1, 29.9)) is SilenceVerdict.SILENT, "the other has just come back"
    assert verdict(3600, NodeWitness("n")) is SilenceVerdict.SILENT, "nothing is known of its node"


def test_a_node_is_judged_by_its_lease_only_after_it_was_watched() -> None:
    def of(unchanged: float, observed: float) -> NodeWitness:
        return witness_of("n", READY, NodeLease(unchanged, observed), is_gone=False)

    assert of(4, 4) == NodeWitness("n", judged_in_seconds=11.0)
    assert of(4, 18) == WELL
    assert of(18, 18).lost_because == "its node n has not renewed its Lease for 18 s"


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_ready_or_gone_is_lost_whatever_its_lease(status: str) -> None:
    ready = {"type": "Ready", "status": status, "message": "Kubelet stopped posting node status."}
    node: dict[str, Any] = {"metadata": {"name": "n"}, "status": {"conditions": [ready]}}
    for lease in (None, NodeLease(0, 100)):
        found = witness_of("n", node, lease, is_gone=False)
        assert found.lost_because == "node n is not ready: Kubelet stopped posting node status."
    assert witness_of("n", None, None, is_gone=True).lost_because == "its node n is gone"


def test_of_a_pod_without_a_node_or_a_node_that_says_nothing_nothing_is_known() -> None:
    assert witness_of("", None, None, is_gone=False) == NodeWitness()
    bare = {"metadata": {"name": "n"}}
    assert witness_of("n", bare, None, is_gone=False) == NodeWitness("n")


@given(st.integers(1, 20_000), st.integers(26, 3_600))
def test_a_node_is_watched_early_enough_to_be_judged_by_the_time_out(workers: int, timeout: int) -> None:
    watched = timeout - missed_after_seconds(workers, timeout)
    assert watched >= NodeLease(0, 0).patience_seconds
    assert missed_after_seconds(workers, timeout) > heartbeat_seconds(workers, timeout)


# --- fleets ---------------------------------------------------------------------------------------------------


@dataclass
class Machine:
    """A node with one worker, on which things happen at times (seconds); None: never."""

    dies_at: float | None = None
    stuck_at: float | None = None
    """Its agent stops, while the node goes on."""
    cut: tuple[float, float] | None = None
    """While its agent does not reach the API server."""
    phase: float = 0.0
    """When in each period its agent and its kubelet renew."""
    ended: tuple[float, Silence] | None = None

    def agent_renews(self, at: float) -> bool:
        away = self.cut is not None and self.cut[0] <= at < self.cut[1]
        return self.lives(at) and not away and not (self.stuck_at is not None and at >= self.stuck_at)

    def lives(self, at: float) -> bool:
        return self.dies_at is None or at < self.dies_at


@dataclass
class Fleet:
    """One job's workers, each judged every second by what a controller can know."""

    machines: list[Machine]
    heard_at: list[float] = field(default_factory=list)
    node_heard_at: list[float] = field(default_factory=list)
    few_since: float | None = None
    most_at_once: int = 0

    def run(self, seconds: int) -> None:
        self.heard_at, self.node_heard_at = ([0.0] * len(self.machines) for _ in range(2))
        for second in range(seconds):
            self._renew(float(second))
            company = self._company(float(second))
            ended = [self._judge(at, float(second), company) for at in self._working()]
            self.most_at_once = max(self.most_at_once, ended.count(SilenceVerdict.AGENT_LOST))

    def _working(self) -> list[int]:
        return [at for at, machine in enumerate(self.machines) if machine.ended is None]

    def _renew(self, now: float) -> None:
        for at, machine in enumerate(self.machines):
            if now % BEAT == machine.phase:
                self.heard_at[at] = now if machine.agent_renews(now) else self.heard_at[at]
                self.node_heard_at[at] = now if machine.lives(now) else self.node_heard_at[at]

    def _company(self, now: float) -> Company:
        company = company_of((now - self.heard_at[at] for at in self._working()), TIMEOUT)
        self.few_since = (self.few_since or now) if company.is_few else None
        return replace(company, few_seconds=now - (self.few_since or now))

    def _judge(self, at: int, now: float, company: Company) -> SilenceVerdict:
        machine, silent = self.machines[at], now - self.heard_at[at]
        lease = NodeLease(now - self.node_heard_at[at], max(0.0, silent - missed_after_seconds(1, TIMEOUT)))
        silence = judge_silence(silent, TIMEOUT, witness_of("n", READY, lease, is_gone=False), company)
        if silence.is_loss:
            machine.ended = now, silence
        return silence.verdict


def times(most: int = 200) -> st.SearchStrategy[float | None]:
    return st.one_of(st.none(), st.integers(20, most).map(float))


@st.composite
def fleets(draw: st.DrawFn, *, dying: bool, most: int = 45) -> Fleet:
    size = draw(st.integers(1, most))
    begins, lasts = draw(st.integers(20, 150)), draw(st.integers(0, 400))
    machines = [
        Machine(
            dies_at=draw(times()) if dying and draw(st.booleans()) else None,
            stuck_at=draw(times()) if draw(st.integers(0, 9)) == 0 else None,
            cut=(float(begins), float(begins + lasts)) if draw(st.booleans()) else None,
            phase=float(draw(st.integers(0, 9))),
        )
        for _ in range(size)
    ]
    return Fleet(machines)


def ends(fleet: Fleet) -> Iterator[tuple[Machine, float, Silence]]:
    for machine in fleet.machines:
        if machine.ended is not None:
            yield machine, *machine.ended


@given(fleets(dying=False))
@settings(max_examples=15, deadline=None)
def test_never_all_workers_are_deleted_while_their_nodes_are_well(fleet: Fleet) -> None:
    fleet.run(420)
    assert len(list(ends(fleet))) < len(fleet.machines)
    assert fleet.most_at_once <= max(1, len(fleet.machines) // FEW)
    assert all(silence.seconds >= LEAST_AGENT_SECONDS for _, _, silence in ends(fleet))


@given(st.integers(2, 45), st.integers(20, 60), st.integers(61, 900))
@settings(max_examples=10, deadline=None)
def test_nobody_is_deleted_when_all_ways_to_the_api_server_are_cut(
    size: int, begins: int, ends_at: int
) -> None:
    fleet = Fleet([Machine(cut=(float(begins), float(ends_at)), phase=float(i % 10)) for i in range(size)])
    fleet.run(ends_at + 60)
    assert list(ends(fleet)) == []


@given(fleets(dying=True))
@settings(max_examples=25, deadline=None)
def test_a_dead_nodes_worker_is_always_lost_within_the_time_out_and_no_node_that_is_well_is_blamed(
    fleet: Fleet,
) -> None:
    """And so none of those gets into a worker's excludedNodes."""
    fleet.run(420)
    for machine in fleet.machines:
        if machine.dies_at is not None and not (machine.ended and machine.ended[0] < machine.dies_at):
            assert machine.ended is not None
            assert machine.ended[0] <= machine.dies_at + TIMEOUT + 1
    for machine, at, silence in ends(fleet):
        assert silence.verdict is not SilenceVerdict.NODE_LOST or not machine.lives(at)
