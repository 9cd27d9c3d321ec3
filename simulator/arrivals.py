"""Faults and changes of a fleet, drawn from a seed or read from a script.

All arrivals are Poisson processes over the whole fleet; an arrival at a node that the job does not use has
no effect. So the rate of the nodes in use is exact even if their number changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from simulator import incidents
from simulator.crew import Crew
from simulator.nodes import exponential
from simulator.state import DAY, SimulationState


@dataclass(frozen=True)
class Fault:
    """Fault of a script."""

    seconds: float
    kind: str
    """One of process, hang, device, node, podDeleted and preempted."""
    slot: int


def begin(state: SimulationState[Crew]) -> None:
    """Start the fleet's faults and changes of capacity."""
    faults = state.fleet.faults
    streams: list[tuple[float, Callable[[], None]]] = [
        (faults.per1000_node_days / faults.bursts.size, partial(_burst, state)),
        (faults.slowdowns.per1000_node_days, partial(_slow_down, state)),
        (faults.corruptions.per1000_node_days, partial(_corrupt, state)),
        (faults.preemptions_per1000_node_days, partial(_preempt, state)),
    ]
    for rate, happens in streams:
        if rate:
            _Stream(state, rate, happens).next()
    for change in state.fleet.capacity:
        state.clock.after(change.day * DAY, partial(_change_capacity, state, change.nodes))


def follow(state: SimulationState[Crew], script: Sequence[Fault]) -> None:
    """Start only the faults of the script."""
    for fault in script:
        state.clock.after(fault.seconds, partial(_scripted, state, fault))


@dataclass(frozen=True)
class _Stream:
    state: SimulationState[Crew]
    per1000_node_days: float
    happens: Callable[[], None]

    def next(self) -> None:
        rate = self.per1000_node_days / 1_000 / DAY * self.state.nodes.weight()
        self.state.clock.after(exponential(self.state.rng, 1 / rate), self._arrive)

    def _arrive(self) -> None:
        self.next()
        self.happens()


def _burst(state: SimulationState[Crew]) -> None:
    bursts = state.fleet.faults.bursts
    _draw(state)
    for _ in range(bursts.size - 1):
        state.clock.after(state.rng.uniform(0, bursts.within_seconds), partial(_draw, state))


def _draw(state: SimulationState[Crew]) -> None:
    kinds = state.fleet.faults.kinds.model_dump()
    node = state.nodes.pick_to_fail()
    (kind,) = state.rng.choices(list(kinds), list(kinds.values()))
    crew = state.crew_of.get(node)
    if crew is None or node in state.down:
        return
    if state.fleet.faults.while_training_only and not crew.trains:
        return
    _happens(state, crew, kind, node)


def _happens(state: SimulationState[Crew], crew: Crew, kind: str, node: int) -> None:
    state.outcome.faults[kind] += 1
    match kind:
        case "process":
            crew.settle()
            incidents.process_fails(crew, node)
        case "hang":
            crew.settle()
            incidents.hangs(crew, node)
        case "device":
            crew.settle()
            incidents.device_fails(crew, node)
        case "node":
            incidents.fall_silent(state, [node], None)
        case "switch":
            first = node // state.fleet.rack_nodes * state.fleet.rack_nodes
            rack = range(first, first + state.fleet.rack_nodes)
            there = [n for n in rack if n in state.crew_of and n not in state.down]
            incidents.fall_silent(state, there, exponential(state.rng, state.fleet.repair.automated_seconds))
        case "podDeleted":
            crew.settle()
            incidents.pod_is_deleted(crew, node)
        case "preempted":
            incidents.take_away(state, node, state.fleet.times.preempted_seconds)


def _scripted(state: SimulationState[Crew], fault: Fault) -> None:
    (crew,) = state.active
    _happens(state, crew, fault.kind, crew.node_of[fault.slot])


def _slow_down(state: SimulationState[Crew]) -> None:
    slowdowns, node = state.fleet.faults.slowdowns, state.nodes.pick_to_fail()
    crew = state.crew_of.get(node)
    if crew is None or node in state.down:
        return
    state.outcome.faults["slowdown"] += 1
    crew.show(node)
    crew.slow[node] = slowdowns.factor

    def over() -> None:
        crew.slow.pop(node, None)

    state.clock.after(exponential(state.rng, slowdowns.seconds), over)


def _corrupt(state: SimulationState[Crew]) -> None:
    node = state.nodes.pick_to_fail()
    crew = state.crew_of.get(node)
    if crew is None or not crew.trains:
        return
    state.outcome.faults["corruption"] += 1
    work = state.account.work
    wait = exponential(state.rng, state.fleet.faults.corruptions.noticed_after_seconds)

    def noticed() -> None:
        if state.account.work > work and node in crew.nodes:
            crew.settle()
            incidents.corruption_shows(crew, node, work)

    state.clock.after(wait, noticed)


def _preempt(state: SimulationState[Crew]) -> None:
    node = state.nodes.pick_to_fail()
    if node in state.crew_of and node not in state.down and node not in state.away:
        state.outcome.faults["preempted"] += 1
        incidents.take_away(state, node, state.fleet.times.preempted_seconds)


def _change_capacity(state: SimulationState[Crew], change: int) -> None:
    if change > 0:
        state.nodes.add(change)
        state.place_waiting()
        return
    for _ in range(min(-change, len(state.nodes))):
        if state.nodes.free:
            state.nodes.forget(state.nodes.free.pick(state.rng))
            continue
        used = [node for node in state.crew_of if node not in state.down and node not in state.away]
        if not used:
            return
        state.outcome.faults["preempted"] += 1
        incidents.take_away(state, state.rng.choice(used), None)
