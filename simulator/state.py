"""State of one simulated run that its groups of nodes share: clock, nodes, account and counts.

`crew.Crew` holds one group's own state and changes this one; `engine.Simulation` runs it.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from crds.elasticjob import ElasticJob
from simulator import objects
from simulator.account import PublishedWorld, RunOutcome
from simulator.clock import SimulatedClock
from simulator.fleet import Fleet
from simulator.groups import GroupedJob
from simulator.nodes import Nodes, name_of
from simulator.planned import PlannedJob

DAY = 86_400.0


class Placing(Protocol):
    """Interface of a group of nodes to this module: Pods that wait for a node."""

    @property
    def pending(self) -> Collection[int]:
        """Slots whose Pod has no node."""

    def place_pending(self) -> bool:
        """Place the first of them; return whether it got a node."""


C = TypeVar("C", bound=Placing)
"""Type of the groups of nodes, `crew.Crew`."""


@dataclass
class SimulationState(Generic[C]):
    fleet: Fleet
    seed: int = 0
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    outcome: RunOutcome = field(default_factory=RunOutcome)
    crew_of: dict[int, C] = field(default_factory=dict)
    """Group of each node in use."""
    active: list[C] = field(default_factory=list)
    """Groups with workers that are simulated individually."""
    down: set[int] = field(default_factory=set)
    away: set[int] = field(default_factory=set)
    """Nodes that were taken away and will return."""
    convicted: set[int] = field(default_factory=set)
    """Nodes that a check found faulty; they are repaired when their Pods leave."""
    groups: GroupedJob | None = None
    """Job that owns the replica groups; None without any."""
    _left_at: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.account = self.outcome.account
        self.nodes = Nodes.of(self.fleet, random.Random(f"{self.seed}, nodes"), self.outcome)
        self.is_single_group = self.fleet.policies.group_nodes is None

    def at(self) -> datetime:
        return objects.at(self.clock.now)

    # --- training -------------------------------------------------------------------------------------------

    def saved_work(self, *, memory: bool, limit: float | None) -> float:
        """Return the work in the newest usable checkpoint; `memory`: checkpoints in memory have survived."""
        policies, interval = self.fleet.policies, self.fleet.memory_interval
        work = self.account.work if limit is None else min(self.account.work, limit)
        every = policies.storage_checkpoint_seconds
        saved = work // every * every
        if memory and interval is not None:
            saved = max(saved, work // interval * interval)
        if self._left_at <= work and (memory or interval is None):
            saved = max(saved, self._left_at)
        return saved

    def count_interruption(self) -> None:
        self.outcome.interruptions += 1

    def look_at_group(self, number: int, group: ElasticJob) -> None:
        """Let the job with replica groups reconcile one of them."""
        if self.groups is None:
            return
        self._account_until(self.groups.look(number, group, self.clock.now))
        if self.groups.has_failed:
            self.end(self.groups.job)

    def leave_out(self, number: int, waiting: int) -> None:
        """Let a group report that it waits for another in vain."""
        if self.groups is not None:
            self._account_until(self.groups.leave_out(number, waiting, self.clock.now))

    def _account_until(self, stall_seconds: float) -> None:
        """Split the account of time at the end of a stall."""
        if stall_seconds:
            self.clock.after(stall_seconds, lambda: None)

    def note_orderly_stop(self) -> None:
        """Note that all members left after the same step and saved it."""
        self._left_at = self.account.work

    def record_world(self, job: PlannedJob, *, recorded: bool) -> None:
        """Count a new world; keep it for the story if `recorded`."""
        self.outcome.rounds += 1
        world, blamed = job.world, job.job.status.last_failure
        if recorded:
            failure = f"{blamed.worker} {blamed.exit_class}" if blamed is not None else ""
            members, incarnations = tuple(world.members), tuple(world.incarnations)
            self.outcome.story.append(
                PublishedWorld(self.clock.now, world.round, members, incarnations, failure)
            )

    def end(self, job: ElasticJob) -> None:
        """Note that the controller gave the job up, and why."""
        if not self.outcome.ended:
            status = job.status
            failed = next((c for c in status.conditions if c.type == "Failed"), None)
            reason = f"{failed.reason}: {failed.message}" if failed is not None else str(status.phase)
            self.outcome.ended = f"after {self.clock.now / DAY:.1f} days: {reason}"

    # --- nodes ----------------------------------------------------------------------------------------------

    def left(self, node: int) -> None:
        """Free, cordon or repair a node that no Pod uses any more."""
        if node in self.down or node in self.away:
            return
        is_faulty = node in self.convicted or node in self.nodes.ill
        self.convicted.discard(node)
        if is_faulty and self.nodes.may_cordon(node):
            self.outcome.cordoned.append(name_of(node))
            self.repair(node)
            return
        if node in self.nodes.ill:
            self.nodes.turns_bad(node)
        self.nodes.release(node)
        self.place_waiting()

    def repair(self, node: int) -> None:
        """Take the node out of service until it is repaired."""
        self.clock.after(self.nodes.repair_seconds(node), lambda: self.restore(node))

    def restore(self, node: int) -> None:
        """Put a repaired node back into service."""
        self.down.discard(node)
        if node not in self.crew_of:
            self.nodes.repaired(node)
            self.place_waiting()

    def place_waiting(self) -> None:
        """Place waiting Pods on free nodes."""
        for crew in [crew for crew in self.active if crew.pending]:
            while self.nodes.free and crew.place_pending():
                pass
