"""Many runs of one fleet: means with confidence intervals, and the effect of each change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from simulator.account import RunOutcome, TimeUse
from simulator.engine import Simulation
from simulator.fleet import Fleet, Restart

EFFECT_SEEDS = 5
"""Number of runs for the effect of a change, with the same seeds with and without it."""
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % quantiles of Student's distribution, by degrees of freedom from 1 on."""

Progress = Callable[[str, float], None]
"""Callback with the name of the running fleet, and the share that is done."""


@dataclass(frozen=True)
class Mean:
    value: float
    half_width: float
    """Half the width of the 95 % confidence interval; 0 for a single run, which has none."""


@dataclass(frozen=True)
class RunResult:
    fleet: Fleet
    days: float
    outcomes: tuple[RunOutcome, ...]

    @property
    def goodput(self) -> Mean:
        return mean_of([outcome.goodput for outcome in self.outcomes])

    @property
    def full_speed(self) -> Mean:
        return mean_of([outcome.full_speed for outcome in self.outcomes])

    @property
    def shares(self) -> Mapping[TimeUse, Mean]:
        """Shares of the time by use."""
        return {
            part: mean_of([outcome.account.seconds[part] / outcome.seconds for outcome in self.outcomes])
            for part in TimeUse
        }

    def mean(self, figure: Callable[[RunOutcome], float]) -> Mean:
        return mean_of([figure(outcome) for outcome in self.outcomes])

    @property
    def ended(self) -> Sequence[str]:
        """Why jobs failed before the end."""
        return [outcome.ended for outcome in self.outcomes if outcome.ended]


@dataclass(frozen=True)
class FaultEffect:
    change: str
    gain: Mean
    """Gain in full speed, on the same seeds."""


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean of one value or more."""
    if len(values) < 2:
        return Mean(fmean(values), 0.0)
    freedom = len(values) - 1
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.5 / freedom
    return Mean(fmean(values), quantile * stdev(values) / math.sqrt(len(values)))


def simulate(fleet: Fleet, days: float, seeds: Sequence[int], progress: Progress | None = None) -> RunResult:
    """Simulate one run per seed; the same seeds give the same result."""
    outcomes = []
    for number, seed in enumerate(seeds):

        def report(share: float, number: int = number) -> None:
            if progress is not None:
                progress(fleet.name, (number + share) / len(seeds))

        outcomes.append(Simulation(fleet, seed).run(days, progress=report))
    return RunResult(fleet, days, tuple(outcomes))


def effects(base: RunResult, seeds: Sequence[int], progress: Progress | None = None) -> list[FaultEffect]:
    """Return the effect of each change alone, the greatest first."""
    few = list(seeds)[:EFFECT_SEEDS]
    unchanged = base.outcomes[: len(few)]
    found = []
    for name, fleet in changes(base.fleet).items():
        changed = simulate(fleet.model_copy(update={"name": name}), base.days, few, progress)
        gains = [b.full_speed - a.full_speed for a, b in zip(unchanged, changed.outcomes, strict=True)]
        found.append(FaultEffect(name, mean_of(gains)))
    return sorted(found, key=lambda effect: -effect.gain.value)


def changes(fleet: Fleet) -> dict[str, Fleet]:
    """Return variants of the fleet with one change each, by name."""
    policies, times = fleet.policies, fleet.times
    on_off = _switched(fleet)
    if policies.hang_timeout_seconds > HANG_SECONDS:
        on_off[f"hangTimeoutSeconds: {HANG_SECONDS}"] = fleet.changed(hang_timeout_seconds=HANG_SECONDS)
    if policies.heartbeat_timeout_seconds > HEARTBEAT_SECONDS:
        sooner = fleet.changed(heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
        on_off[f"heartbeatTimeoutSeconds: {HEARTBEAT_SECONDS}"] = sooner
    interval = fleet.memory_interval
    if interval is not None and interval > 2 * times.step_seconds:
        often = fleet.changed(memory_checkpoint_seconds=interval / 2)
        on_off[f"memory saves every {interval / 2:.0f} s"] = often
    half = {
        "communicator_seconds": times.communicator_seconds / 2,
        "communicator_large_seconds": times.communicator_large_seconds / 2,
    }
    on_off["NCCL starts in half the time"] = fleet.model_copy(update={"times": times.model_copy(update=half)})
    pods = times.model_copy(update={"pod_seconds": times.pod_seconds / 2})
    on_off["Pods start in half the time"] = fleet.model_copy(update={"times": pods})
    size = GROUP_NODES - GROUP_NODES % fleet.node_unit
    if policies.group_nodes is None and fleet.nodes > size and size and not fleet.nodes % size:
        whole = fleet.model_copy(update={"min_nodes": None, "max_nodes": None})
        on_off[f"replica groups of {size} nodes"] = whole.changed(group_nodes=size, standby=0)
    return on_off


HANG_SECONDS = 300
HEARTBEAT_SECONDS = 10
STANDBY = 2
GROUP_NODES = 64
FEWER_SHARE = 0.9


def _switched(fleet: Fleet) -> dict[str, Fleet]:
    """Return variants of the fleet with one policy switched each."""
    policies = fleet.policies
    found: dict[str, Fleet] = {}
    if policies.group_nodes is None:
        standby = 0 if policies.standby else STANDBY
        found[f"standby: {standby}"] = fleet.changed(standby=standby)
        fewer = int(fleet.nodes * FEWER_SHARE) // fleet.node_unit * fleet.node_unit
        if fleet.min_nodes is None and fewer:
            found[f"minNodes: {fewer}"] = fleet.model_copy(update={"min_nodes": fewer})
        elif fleet.min_nodes is not None:
            found["minNodes: none (no shrinking)"] = fleet.model_copy(update={"min_nodes": None})
    else:
        found["no replica groups"] = fleet.changed(group_nodes=None)
    in_place = policies.restart is Restart.IN_PLACE
    other = Restart.EVERYBODY if in_place else Restart.IN_PLACE
    found[f"restart: {other}"] = fleet.changed(restart=other)
    memory = None if policies.memory_checkpoint_seconds is not None else "auto"
    found[f"memoryCheckpointSeconds: {memory or 'none'}"] = fleet.changed(memory_checkpoint_seconds=memory)
    if policies.memory_checkpoint_seconds is not None:
        found[f"replicas: {1 - policies.replicas}"] = fleet.changed(replicas=1 - policies.replicas)
    for field, name in (("node_check_before", "nodeCheckBefore"), ("node_check_after", "nodeCheckAfter")):
        wanted = not getattr(policies, field)
        found[f"{name}: {str(wanted).lower()}"] = fleet.changed(**{field: wanted})
    if fleet.faults.slowdowns.per1000_node_days:
        wanted = not policies.exclude_stragglers
        both = fleet.changed(exclude_stragglers=wanted, node_check_after=True)
        found[f"excludeStragglers: {str(wanted).lower()}, nodeCheckAfter: true"] = both
    found[f"cordon: {str(not policies.cordon).lower()}"] = fleet.changed(cordon=not policies.cordon)
    storage = policies.storage_checkpoint_seconds / 2
    found[f"storageCheckpointSeconds: {storage:g}"] = fleet.changed(storage_checkpoint_seconds=storage)
    return found
