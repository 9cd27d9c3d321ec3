"""What befalls a fleet, and when: drawn by a seed, or as a script says.

All arrivals are Poisson processes over the whole fleet; an arrival at a node that the job does not use is
nobody's concern. So the rate of the nodes in use is exact however their number changes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.crew import Crew
    from simulator.engine import Simulation

DAY = 86_400.0


@dataclass(frozen=True)
class Fault:
    """One of a script."""

    seconds: float
    kind: str
    """process, hang, device, node, podDeleted or preempted."""
    slot: int


def begin(sim: Simulation) -> None:
    """Everything that the fleet says of faults and of nodes that come and go."""
    faults = sim.fleet.faults
    streams: list[tuple[float, Callable[[], None]]] = [
        (faults.per1000_node_days / faults.bursts.size, partial(_burst, sim)),
        (faults.slowdowns.per1000_node_days, partial(_slow_down, sim)),
        (faults.corruptions.per1000_node_days, partial(_corrupt, sim)),
        (faults.preemptions_per1000_node_days, partial(_preempt, sim)),
    ]
    for rate, happens in streams:
        if rate:
            _Stream(sim, rate, happens).next()
    for change in sim.fleet.capacity:
        sim.clock.after(change.day * DAY, partial(_change_capacity, sim, change.nodes))


def follow(sim: Simulation, script: Sequence[Fault]) -> None:
    """What the script says, and nothing else."""
    for fault in script:
        sim.clock.after(fault.seconds, partial(_scripted, sim, fault))


@dataclass(frozen=True)
class _Stream:
    sim: Simulation
    per1000_node_days: float
    happens: Callable[[], None]

    def next(self) -> None:
        rate = self.per1000_node_days / 1_000 / DAY * self.sim.nodes.weight()
        self.sim.clock.after(exponential(self.sim.rng, 1 / rate), self._arrive)

    def _arrive(self) -> None:
        self.next()
        self.happens()


def exponential(rng: random.Random, mean: float) -> float:
    return rng.expovariate(1 / mean) if mean else 0.0


def _burst(sim: Simulation) -> None:
    bursts = sim.fleet.faults.bursts
    _draw(sim)
    for _ in range(bursts.size - 1):
        sim.clock.after(sim.rng.uniform(0, bursts.within_seconds), partial(_draw, sim))


def _draw(sim: Simulation) -> None:
    kinds = sim.fleet.faults.kinds.model_dump()
    node = sim.nodes.pick_to_fail()
    (kind,) = sim.rng.choices(list(kinds), list(kinds.values()))
    crew = sim.crew_of.get(node)
    if crew is None or node in sim.down:
        return
    if sim.fleet.faults.while_training_only and not crew.trains:
        return
    _befalls(sim, crew, kind, node)


def _befalls(sim: Simulation, crew: Crew, kind: str, node: int) -> None:
    sim.faults[kind] += 1
    match kind:
        case "process":
            crew.settle()
            crew.process_fails(node)
        case "hang":
            crew.settle()
            crew.hangs(node)
        case "device":
            crew.settle()
            crew.device_fails(node)
        case "node":
            sim.fall_silent([node], None)
        case "switch":
            first = node // sim.fleet.rack_nodes * sim.fleet.rack_nodes
            rack = range(first, first + sim.fleet.rack_nodes)
            there = [n for n in rack if n in sim.crew_of and n not in sim.down]
            sim.fall_silent(there, exponential(sim.rng, sim.fleet.repair.automated_seconds))
        case "podDeleted":
            crew.settle()
            crew.pod_is_deleted(node)
        case "preempted":
            sim.take_away(node, sim.fleet.times.preempted_seconds)


def _scripted(sim: Simulation, fault: Fault) -> None:
    (crew,) = sim.active
    _befalls(sim, crew, fault.kind, crew.node_of[fault.slot])


def _slow_down(sim: Simulation) -> None:
    slowdowns, node = sim.fleet.faults.slowdowns, sim.nodes.pick_to_fail()
    crew = sim.crew_of.get(node)
    if crew is None or node in sim.down:
        return
    sim.faults["slowdown"] += 1
    crew.show(node)
    crew.slow[node] = slowdowns.factor

    def over() -> None:
        crew.slow.pop(node, None)

    sim.clock.after(exponential(sim.rng, slowdowns.seconds), over)


def _corrupt(sim: Simulation) -> None:
    node = sim.nodes.pick_to_fail()
    crew = sim.crew_of.get(node)
    if crew is None or not crew.trains:
        return
    sim.faults["corruption"] += 1
    work = sim.account.work
    wait = exponential(sim.rng, sim.fleet.faults.corruptions.noticed_after_seconds)

    def noticed() -> None:
        if sim.account.work > work and node in crew.nodes:
            crew.settle()
            crew.corruption_shows(node, work)

    sim.clock.after(wait, noticed)


def _preempt(sim: Simulation) -> None:
    node = sim.nodes.pick_to_fail()
    if node in sim.crew_of and node not in sim.down and node not in sim.away:
        sim.faults["preempted"] += 1
        sim.take_away(node, sim.fleet.times.preempted_seconds)


def _change_capacity(sim: Simulation, change: int) -> None:
    if change > 0:
        sim.nodes.add(change)
        sim.freed()
        return
    for _ in range(min(-change, len(sim.nodes))):
        if sim.nodes.free:
            sim.nodes.forget(sim.nodes.free.pick(sim.rng))
            continue
        used = [node for node in sim.crew_of if node not in sim.down and node not in sim.away]
        if not used:
            return
        sim.faults["preempted"] += 1
        sim.take_away(sim.rng.choice(used), None)
